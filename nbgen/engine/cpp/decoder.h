// The parts of a decoder's layers, and the inputs and buffers of a step through them.

#pragma once

#include "activations.h"
#include "attention.h"
#include "experts.h"
#include "norms.h"
#include "recurrence.h"
#include "router.h"
#include "scales.h"
#include "turns.h"

// A mixture-of-experts feed-forward. Optional norms: `input_norm` of the experts' input, `mixed_norm` of their output, and
// `beside_norm` of the output of the shared feed-forward beside them.
template <typename T>
struct SparseFeed {
    Router<T> router;
    Experts<T> experts;
    Norm<T> input_norm, mixed_norm, beside_norm;
};

// How a layer mixes the streams of a row's hidden states, of which it computes only the first (`streams.h`). `routes` reads the
// first stream, normed and times `scale`. From its output, `predicts` makes each stream's shares of all streams before the layer,
// and `corrects` how much of the first stream's change each stream gets after it. The gate of the per-layer inputs reads the first
// stream times `scales` `[width]`, unless null. `right` of `left` of attention's input, normed, is added beside attention.
template <typename T>
struct Mixing {
    Linear<T> routes, predicts, corrects, left, right;
    Norm<T> routed_norm, beside_norm;
    float scale;
    const T* scales;
};

// There are norms of the inputs and outputs of attention and the feed-forward, and of queries, keys and values. The latter norm
// each head, by its own weights for `each_head`, or all heads of the queries and of the keys together for `all_heads`. Rotary
// positions leave a head's first `still` numbers, and turn the next `turned` by the cosines and sines from `turn` on; before the
// norms if `turned_first`, with rounded intermediate results if `rounds`. If `opened`, `query` makes each head's query and then a
// gate for its result. If `joined` is not 0, `query` makes queries, keys and values of so many heads at a time, in this order or
// `values_first`: values before keys. `stretch`, unless 0, is where a position's cosines hold a factor for queries. Without `up`, a
// feed-forward only activates `gate`. A feed-forward `beside_attention` norms the layer's input, or without a norm takes the same
// input as attention. A `recurrence` stands in for attention, or runs beside it and is added. Experts (`sparse`) stand in for
// `gate`, `up` and `down`, or run beside them: then each row's result of these three counts as much as the one output of `beside`
// says, or fully without it. Without a `key` the layer reads another layer's KV cache; without a `value`, values are the keys
// before their norm. Inputs of the layer's own begin at `first_given` in a row's: `given_gate` opens them, and `given_output` makes
// of them what is added. The layer's result is multiplied by `leaves`. `clip`, unless 0, bounds queries, keys and values. Latent
// attention: `compressed` makes a row's latent, of which `key`, after a norm, makes all heads' values and the first `still` numbers
// of their keys; the rest of `compressed` is the rest of every head's key. If there is a `narrow`, `query` reads its output,
// normed. A layer may have only attention, only a recurrence, or only a feed-forward, whose norm then is `input_norm`. If
// `sparsity` is finite, `gate` outputs count by how far they exceed their row's mean plus `sparsity` standard deviations.
template <typename T>
struct DecoderLayer {
    Norm<T> input_norm, attended_norm, feed_norm, fed_norm, query_norm, key_norm, value_norm, given_norm;
    Norm<T> compressed_norm, narrow_norm;
    Counted<T> query, key, value, output, gate, up, down, beside, given_gate, given_output, compressed, narrow;
    AttentionLayer attention;
    void* keys;  // of the type that attention keeps, as the values are
    void* values;
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

// The per-layer inputs of a token. They are the sum, times `both`, of the token's row of separate `embeddings` (whose outputs are
// tokens), times `embedding`, and of a `projection` of its usual embedding, times `projected`. Each layer's `width` numbers of the
// projection are normed.
template <typename T>
struct PerLayer {
    Linear<T> embeddings, projection;
    Norm<T> norm;
    int64_t width;
    float embedding, projected, both;
};

// Several streams of a row's hidden states, of `width` numbers each (`streams.h`). All but the first are made by `begins` of the
// row's embedding before the layers, and converted by `ends` after the layers. Both results are scaled to be as large as the first.
template <typename T>
struct Alternating {
    int64_t count, width;
    const Linear<T>*begins, *ends;
};

// `slots` `[rows]` are the cache slots for new keys and values. `adapters` `[rows, 2]` are each row's first column of the stacked
// adapters and one past its last; null if no row has an adapter. `positions` `[rows]` are rows of `cosines` and `sines`
// `[…, turns]`. Recurrent layers read `sequences`, `count` of them, whose rows follow each other. `normed` to `scratch` are buffers
// with room for the widest layer, `routes` those of layers with experts. All pointers from `last` on may be null. `last` is the
// rest of the step once the last keys and values are in the cache: only the `wanted` rows, in order, in the same buffers. Rows
// begin as the `embeddings` (whose outputs are tokens) of `ids` `[rows]`, normed by `embedded` if that is a norm, plus `places`,
// the embeddings of their positions. `given` are the per-layer inputs, made as `per_layer` says. `alternating` says how `streams`
// `[streams, rows, width]` begin and end. At the end `norm` makes `normed`, and `head` makes logits of it: `rounded_scores`, then
// `scores` `[rows, outputs]`, which are the same buffer where T is float.
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
