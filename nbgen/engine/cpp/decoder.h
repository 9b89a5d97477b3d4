// What a decoder's layers are made of, and a step through them.

#pragma once

#include "activations.h"
#include "attention.h"
#include "experts.h"
#include "norms.h"
#include "recurrence.h"
#include "router.h"
#include "scales.h"
#include "turns.h"

// A feed-forward of many experts. Norms, if there are any, are of what goes into them, of what comes out, and of what comes out of
// the feed-forward beside them.
template <typename T>
struct SparseFeed {
    Router<T> router;
    Experts<T> experts;
    Norm<T> input_norm, mixed_norm, beside_norm;
};

// How a layer mixes the streams of a row's states of which it computes the first (`streams.h`). What `routes` makes of that one,
// normed and `scale` times, says by `predicts` what each stream has of all before the layer, and by `corrects` how much of what has
// changed comes to each behind it. A layer's own inputs see the first times `scales` `[width]`, if these are not null. Beside
// attention there is what `left` and `right` make of its input, normed.
template <typename T>
struct Mixing {
    Linear<T> routes, predicts, corrects, left, right;
    Norm<T> routed_norm, beside_norm;
    float scale;
    const T* scales;
};

// Norms are of what goes into attention and the feed-forward, of what comes out of them, and of queries, keys and values: of each
// head, for `each_head` perhaps by weights of its own, or those of queries and keys of `all_heads` together. Of each head `turned`
// numbers behind those that stay `still` are turned, by those of a position from `turn` on. That may come before their norms
// (`turned_first`). What is made of them on the way is rounded if that `rounds`. Where attention is `opened`, `query` makes of each
// head what opens its result behind its query; where so many heads are `joined`, their queries, keys and values are made one behind
// the other, or values before keys (`values_first`). Queries are multiplied by what stands at `stretch` among a position's cosines,
// if that is not 0. Without `up`, `gate` is all that a feed-forward opens. Where that runs `beside_attention`, its norm is of what
// goes into the layer, or none where it takes what attention does. A `recurrence` stands in place of attention, or beside it, added
// up. Where there are experts (`sparse`), they are what stands in place of `gate`, `up` and `down`; or beside them, each row's
// result of which counts as much as the one output of `beside` says, or the same as the experts'. Without a `key` a layer attends
// to what another has in the cache; without a `value`, values are keys before their norm. Where it has inputs of a row's own, which
// begin at `first_given`, `given_gate` opens them and `given_output` makes of them what is added. What a layer `leaves` is
// multiplied by that. No query, key or value is beyond `clip`, if that is not 0. Where there is something `compressed`, `key` makes
// of each row's, normed, all heads' keys and values, but for what keys have behind those numbers, which is the same for all; and
// where there is something `narrow`, `query` makes queries of that, normed. A layer may have attention or a recurrence alone, or a
// feed-forward alone, whose norm is that of what goes into the layer. Where the `sparsity` is finite, what `gate` makes counts as
// far as it is so many of a row's deviations above its mean.
template <typename T>
struct DecoderLayer {
    Norm<T> input_norm, attended_norm, feed_norm, fed_norm, query_norm, key_norm, value_norm, given_norm;
    Norm<T> compressed_norm, narrow_norm;
    Counted<T> query, key, value, output, gate, up, down, beside, given_gate, given_output, compressed, narrow;
    AttentionLayer attention;
    T* keys;
    T* values;
    const Batch* batch;
    Activation activation;
    Xielu xielu;
    int64_t all_heads, each_head, turned_first, still, turned, turn, rounds;
    Turns turns;
    int64_t opened, joined, values_first, stretch, beside_attention;
    const Recurrence<T>* recurrence;
    const SparseFeed<T>* sparse;
    const Mixing<T>* mixing;
    int64_t first_given;
    float leaves, clip, sparsity;

    int64_t width() const { return output.outputs ? output.outputs : sparse ? sparse->experts.downs->outputs : down.outputs; }
    bool feeds() const { return gate.outputs || sparse; }
    bool brings() const { return recurrence || joined || key.outputs; }  // keys, or states
    const Norm<T>& last_norm() const { return given_gate.outputs ? given_norm : fed_norm; }
};

// What layers are given of each token besides: `embeddings` of its own for them, whose outputs are tokens, each times `embedding`,
// and a `projection` of the one that all begin with, times `projected`. Of the latter each layer's `width` numbers are normed. The
// sum counts `both` times.
template <typename T>
struct PerLayer {
    Linear<T> embeddings, projection;
    Norm<T> norm;
    int64_t width;
    float embedding, projected, both;
};

// Several streams of a row's states, of `width` numbers each (`streams.h`). All but the first begin as what `begins` make of the
// row's embedding, and end as what `ends` make of them, as large as the first.
template <typename T>
struct Alternating {
    int64_t count, width;
    const Linear<T>*begins, *ends;
};

// `slots` `[rows]` is where new keys and values go; `adapters` `[rows, 2]` are each row's first column and one past its last of the
// stacked adapters, null where no row has any; `positions` `[rows]` are rows of cosines and sines `[…, turns]`. The rows are of so
// many `sequences`, in order, for layers that remember. What is made meanwhile goes from `normed` on, with room for the widest
// layer, and to the `routes` of a layer with experts. All that follows may be null. `last` is what is left of the step once the
// last keys and values are in the cache: the `wanted` of its rows, in order, with room where this one has it. Rows begin as those
// of `ids` `[rows]` in the `embeddings`, whose outputs are tokens, normed as `embedded` where that is a norm, and the `places` of
// their positions, if there are any; what is `given` to layers besides is made as `per_layer` says, and `streams`
// `[streams, rows, width]` as `alternating` does. In the end `norm` makes `normed` of them, and of that the `head` `scores`
// `[rows, outputs]`, which are rounded as `rounded_scores`, the same where T is float.
template <typename T>
struct Step {
    int64_t rows, threads, turns;
    const int64_t* slots;
    const int64_t* adapters;
    const int64_t* positions;
    const float* cosines;
    const float* sines;
    const Sequence* sequences;
    int64_t count;
    T *normed, *queries, *new_keys, *new_values, *attended, *projected, *gates, *ups, *routing, *given, *streams;
    float* scratch;
    const Routes<T>* routes;
    const Step* last;
    const int64_t* wanted;
    const int64_t* ids;
    const Linear<T>* embeddings;
    const T* places;
    const PerLayer<T>* per_layer;
    const Alternating<T>* alternating;
    const Norm<T>* embedded;
    const Norm<T>* norm;
    const Linear<T>* head;
    T* rounded_scores;
    float* scores;
    Scales scales;
};
