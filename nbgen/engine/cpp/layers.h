// A step through the layers of a decoder: norms before attention and feed-forward, after them or both, rotary positions or
// states of recurrent layers, a feed-forward with a gate or none, or a few of many; and where it is asked for, from ids to
// scores. Numbers are rounded where transformers' modules round theirs.

#pragma once

#include "heads.h"
#include "step_member.h"

#define LAYERS

// A member's way through the layers of a step, phase by phase.
template <typename T>
class Walk : StepMember<T> {
    using StepMember<T>::member_, StepMember<T>::step_, StepMember<T>::hidden_;
    using StepMember<T>::multiply_all, StepMember<T>::adapt_row, StepMember<T>::leave;
    using StepMember<T>::normalize_all, StepMember<T>::add_and_normalize;
    using typename StepMember<T>::Parts;

  public:
    static constexpr int64_t PHASES = 44;  // of a layer, at most: 14 to open it, 3 of attention, 27 to close it
    static constexpr int64_t ENDS = 5;     // 4 before all layers, 1 after them

    using StepMember<T>::StepMember;

    void through(const DecoderLayer<T>* layers, int64_t count) {
        if (step_->embeddings) embed(*step_->embeddings);
        const DecoderLayer<T>*leaving = layers + count - 1, *before = nullptr;
        while (leaving > layers && !leaving->brings()) leaving--;
        for (const DecoderLayer<T>* layer = layers; layer < layers + count; layer++) {
            const bool leaves = layer == leaving && step_->last;
            if (before) leave_layer(*before, &layer->input_norm);
            else add_and_normalize(nullptr, &layer->input_norm, layer->width());
            before = layer;
            if (layer->recurrence) {
                remember(*layer, *layer->recurrence, leaves);
            } else {
                open(*layer, leaves);
                attend(*layer);
            }
            close(*layer);
        }
        leave_layer(*before, step_->norm);
        if (step_->head) score(*step_->head);
    }

  private:
    void embed(const Linear<T>& table) {
        member_.each(step_->rows, [&](int64_t row) {
            T* own = hidden_ + row * table.inputs;
            read_output(table, step_->ids[row], own);
            scale_all(step_->scales.embedding, own, table.inputs);
            if (*step_->embedded) normalize(*step_->embedded, own, table.inputs, own);
            if (!step_->places) return;
            const T* place = step_->places + step_->positions[row] * table.inputs;
            for (int64_t i = 0; i < table.inputs; i++) narrow(widen(own[i]) + widen(place[i]), own + i);
        });
        if (step_->per_layer) give(*step_->per_layer);
    }

    void give(const PerLayer<T>& layers) {
        const int64_t width = layers.projection.outputs;
        multiply_all({{&layers.projection, step_->given}}, hidden_);
        std::vector<T> token(width);
        member_.each(step_->rows, [&](int64_t row) {
            T* own = step_->given + row * width;
            read_output(layers.embeddings, step_->ids[row], token.data());
            scale_all(layers.embedding, token.data(), width);
            scale_all(layers.projected, own, width);
            for (int64_t at = 0; at < width; at += layers.width) normalize_if(layers.norm, own + at, layers.width, own + at);
            for (int64_t i = 0; i < width; i++) narrow(rounded<T>(widen(own[i]) + widen(token[i])) * layers.both, own + i);
        });
    }

    void score(const Linear<T>& head) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        const Inputs<T> inputs(step_->rows, step_->normed, head);
        member_.each(inputs.units(head), [&](int64_t unit) {
            const Cut cut = inputs.cut(head, unit);
            multiply(head, inputs, step_->rounded_scores, cut);
            for (int64_t at = 0; at < step_->rows * head.outputs; at += head.outputs)
                cut.each([&](int64_t begin, int64_t end) {
                    finish_scores(step_->scales, step_->rounded_scores, at + begin, at + end, step_->scores);
                });
        });
    }

    // Queries are made, keys and values are in the cache. Rows that nobody wants may be left (`leaves`).
    void open(const DecoderLayer<T>& layer, bool leaves) {
        const int64_t heads = layer.attention.heads, vectors = heads + layer.attention.kv_heads;
        if (layer.joined) return open_joined(layer, leaves);
        if (layer.compressed.outputs) return open_compressed(layer, leaves);
        const typename Products<T>::Part query = {&layer.query, layer.opened ? step_->gates : step_->queries};
        Parts made;
        made.reserve(3);
        if (layer.key.outputs) made.push_back({&layer.key, step_->new_keys});
        if (layer.value.outputs) made.push_back({&layer.value, step_->new_values});
        if (!leaves) {
            made.push_back(query);
            multiply_all(made, step_->normed);
            normalize_heads(layer, true, true);
            place(layer, 0, layer.key.outputs ? vectors : heads);
            return;
        }
        multiply_all(made, step_->normed);
        normalize_heads(layer, false, true);
        place(layer, heads, vectors);
        const int64_t given = step_->per_layer ? step_->per_layer->projection.outputs : 0;
        leave({{hidden_, layer.width()}, {step_->normed, layer.width()}, {step_->given, given}});
        multiply_all({query}, step_->normed);
        normalize_heads(layer, true, false);
        place(layer, 0, heads);
    }

    void open_joined(const DecoderLayer<T>& layer, bool leaves) {
        const int64_t heads = layer.attention.heads;
        multiply_all({{&layer.query, step_->gates}}, step_->normed);
        place(layer, heads, 2 * heads);
        if (leaves)
            leave({{hidden_, layer.width()}, {step_->normed, layer.width()}, {step_->gates, layer.query.outputs}});
        place(layer, 0, heads);
    }

    // Multi-head latent attention (DeepSeek-AI 2024).
    void open_compressed(const DecoderLayer<T>& layer, bool leaves) {
        const int64_t heads = layer.attention.heads, made = layer.compressed.outputs, some = layer.key.inputs;
        multiply_all({{&layer.compressed, step_->ups}}, step_->normed);
        member_.each(step_->rows, [&](int64_t row) {
            normalize(layer.compressed_norm, step_->ups + row * made, some, step_->new_values + row * some);
        });
        multiply_all({{&layer.key, step_->new_keys}}, step_->new_values);
        place(layer, heads, heads + layer.attention.kv_heads);
        if (leaves) leave({{hidden_, layer.width()}, {step_->normed, layer.width()}});
        if (const int64_t width = layer.narrow.outputs) {
            multiply_all({{&layer.narrow, step_->gates}}, step_->normed);
            member_.each(step_->rows, [&](int64_t row) {
                normalize(layer.narrow_norm, step_->gates + row * width, width, step_->gates + row * width);
            });
        }
        multiply_all({{&layer.query, step_->queries}}, layer.narrow.outputs ? step_->gates : step_->normed);
        place(layer, 0, heads);
    }

    // What a recurrent layer makes is where attention's would be; on its way there it uses room that is only needed later.
    void remember(const DecoderLayer<T>& layer, const Recurrence<T>& own, bool leaves) {
        if (own.joined) {
            multiply_all({{&own.mixed, step_->attended}, {&own.steps, step_->projected}}, step_->normed);
            member_.each(step_->rows, [&](int64_t row) {
                separate(own, step_->attended + row * own.mixed.outputs, step_->projected + row * own.steps.outputs,
                         step_->gates + row * own.channels, step_->queries + row * layer.output.inputs,
                         step_->ups + row * own.heads, step_->new_values + row * own.heads);
            });
        } else {
            Parts made = {{&own.mixed, step_->gates}};
            if (own.opening.outputs) made.push_back({&own.opening, step_->queries});
            if (own.steps.outputs) made.push_back({&own.steps, step_->ups});
            if (own.shares.outputs) made.push_back({&own.shares, step_->new_values});
            multiply_all(made, step_->normed);
        }
        Remembered<T>{own,          step_->sequences, step_->count,       step_->rows,    step_->gates,
                      step_->queries, step_->ups,     step_->new_values, step_->scratch, step_->attended}
            .run(member_);
        if (leaves) leave({{hidden_, layer.width()}, {step_->attended, layer.output.inputs}});
    }

    void attend(const DecoderLayer<T>& layer) {
        const PartTimer timer(member_, ATTENTION);
        Attention<T>{*layer.batch, layer.attention, step_->queries, layer.keys, layer.values, step_->attended, step_->scratch}
            .run(member_);
        if (!layer.opened) return;
        const int64_t dim = layer.attention.dim, heads = layer.attention.heads;
        member_.each(step_->rows * heads, [&](int64_t vector) {
            T* own = step_->attended + vector * dim;
            const T* opens = step_->gates + (2 * vector + 1) * dim;
#pragma omp simd
            for (int64_t i = 0; i < dim; i++) narrow(widen(own[i]) * rounded<T>(logistic(widen(opens[i]))), own + i);
        });
    }

    // All after attention, but that what comes last is still to be added.
    void close(const DecoderLayer<T>& layer) {
        multiply_all({{&layer.output, step_->projected}}, step_->attended);
        if (layer.beside_attention && layer.feed_norm) normalize_all(layer.feed_norm, layer.width());
        add_and_normalize(&layer.attended_norm, layer.beside_attention ? nullptr : &layer.feed_norm, layer.width());
        if (layer.gate.outputs) feed(layer, layer.sparse ? step_->attended : step_->projected);
        if (layer.sparse) mix(*layer.sparse, layer.width());
        if (layer.sparse && layer.gate.outputs) add_beside(layer, *layer.sparse);
        if (layer.given_gate.outputs) add_given(layer);
    }

    void leave_layer(const DecoderLayer<T>& layer, const Norm<T>* next) {
        add_and_normalize(&layer.last_norm(), next, layer.width(), layer.leaves);
    }

    // What the layer has made opens what it is given of each token besides.
    void add_given(const DecoderLayer<T>& layer) {
        const int64_t width = layer.given_gate.outputs, stride = step_->per_layer->projection.outputs;
        add_and_normalize(&layer.fed_norm, nullptr, layer.width());
        multiply_all({{&layer.given_gate, step_->gates}}, hidden_);
        member_.each(step_->rows, [&](int64_t row) {
            const T* given = step_->given + row * stride + layer.first_given;
            ::gate(layer.activation, step_->gates + row * width, given, 0, width);
        });
        multiply_all({{&layer.given_output, step_->projected}}, step_->gates);
    }

    // Queries, keys or both, where a norm is of all heads together.
    void normalize_heads(const DecoderLayer<T>& layer, bool queries, bool keys) {
        if (!layer.all_heads) return;
        const int64_t heads = layer.query.outputs, kv_heads = layer.key.outputs;
        member_.each(step_->rows, [&](int64_t row) {
            T *query = step_->queries + row * heads, *key = step_->new_keys + row * kv_heads;
            if (queries) normalize_if(layer.query_norm, query, heads, query);
            if (keys) normalize_if(layer.key_norm, key, kv_heads, key);
        });
    }

    // Of each row's vectors, which are its queries and then its keys, those from `first` to `end`: keys go into the cache, their
    // values beside them, and queries are rotated where they are.
    void place(const DecoderLayer<T>& layer, int64_t first, int64_t end) {
        const int64_t heads = layer.attention.heads, kv_heads = layer.attention.kv_heads, dim = layer.attention.dim;
        std::vector<T> work(dim);
        member_.each(step_->rows * (end - first), [&](int64_t i) {
            const int64_t row = i / (end - first), vector = first + i % (end - first);
            const int64_t turn = step_->positions[row] * step_->turns + layer.turn;
            const float *cosines = step_->cosines + turn, *sines = step_->sines + turn;
            if (vector < heads) {
                const int64_t own = row * heads + vector;
                const T* made = layer.joined   ? joined(layer, row, vector, 0)
                                : layer.opened ? step_->gates + 2 * own * dim
                                               : step_->queries + own * dim;
                normalize_and_rotate(layer, layer.query_norm, vector, made, cosines, sines, work.data(),
                                     step_->queries + own * dim);
                if (layer.stretch) scale_all(cosines[layer.stretch - layer.turn], step_->queries + own * dim, dim);
                return;
            }
            if (layer.compressed.outputs) return place_expanded(layer, row, vector - heads, cosines, sines, work.data());
            const int64_t head = vector - heads, fresh = (row * kv_heads + head) * dim;
            const int64_t cached = (head * layer.attention.slots + step_->slots[row]) * dim;
            const T* key = layer.joined ? joined(layer, row, head, 1 + layer.values_first) : step_->new_keys + fresh;
            const T* value = layer.joined          ? joined(layer, row, head, 2 - layer.values_first)
                             : layer.value.outputs ? step_->new_values + fresh
                                                   : key;
            normalize_and_rotate(layer, layer.key_norm, head, key, cosines, sines, work.data(), layer.keys + cached);
            normalize_if(layer.value_norm, value, dim, layer.values + cached);
            clip(layer, layer.values + cached);
        });
    }

    // Of a head's key and value, which are made one behind the other, and what keys have in common.
    void place_expanded(const DecoderLayer<T>& layer, int64_t row, int64_t head, const float* cosines, const float* sines,
                        T* work) {
        const AttentionLayer& shape = layer.attention;
        const int64_t own = layer.still, common = shape.dim - own, cached = head * shape.slots + step_->slots[row];
        const T* made = step_->new_keys + (row * shape.kv_heads + head) * (own + shape.value_dim);
        std::copy_n(made, own, work);
        std::copy_n(step_->ups + (row + 1) * layer.compressed.outputs - common, common, work + own);
        rotate(layer, work, cosines, sines, layer.keys + cached * shape.dim);
        std::copy_n(made + own, shape.value_dim, layer.values + cached * shape.value_dim);
    }

    // Of three that stand one behind the other for so many heads together, a head's part.
    const T* joined(const DecoderLayer<T>& layer, int64_t row, int64_t head, int64_t part) const {
        const int64_t together = layer.joined, first = 3 * (row * layer.attention.heads + head / together * together);
        return step_->gates + (first + part * together + head % together) * layer.attention.dim;
    }

    void mix(const SparseFeed<T>& sparse, int64_t width) {
        const Router<T>& router = sparse.router;
        const Experts<T>& experts = sparse.experts;
        Routes<T> routes = *step_->routes;
        routes.rows = step_->rows;
        if (router.norm) normalize_all(router.norm, width, router.scale);
        if (router.exact) score_exactly(member_, router, step_->rows, step_->normed, step_->scratch);
        else multiply_all({{&router.scores, step_->routing}}, step_->normed);
        member_.each(routes.rows, [&](int64_t row) {
            const int64_t first = row * router.each;
            T* made = step_->routing + row * experts.count;
            if (router.exact) {
                std::fill_n(made, experts.count, T{});
                adapt_row(router.scores, step_->normed + row * width, row, made);
            }
            route(router, made, step_->scratch + row * experts.count, routes.chosen + first, routes.shares + first);
        });
        if (sparse.input_norm) normalize_all(sparse.input_norm, width);
        Mixture<T>(member_, experts, routes).run(step_->normed, step_->projected);
    }

    // What the feed-forward beside a row's experts has made, where attention's result was, to what these make.
    void add_beside(const DecoderLayer<T>& layer, const SparseFeed<T>& sparse) {
        const int64_t width = layer.width();
        member_.each(step_->rows, [&](int64_t row) {
            T *own = step_->projected + row * width, *more = step_->attended + row * width;
            if (sparse.mixed_norm) normalize_if(sparse.mixed_norm, own, width, own);
            if (sparse.beside_norm) normalize_if(sparse.beside_norm, more, width, more);
            if (layer.beside.outputs) scale_all(share_beside(layer.beside, row), more, width);
            for (int64_t i = 0; i < width; i++) narrow(widen(own[i]) + widen(more[i]), own + i);
        });
    }

    float share_beside(const Linear<T>& linear, int64_t row) {
        const T* own = step_->normed + row * linear.inputs;
        T made;
        narrow(dot(own, linear.weight, linear.inputs), &made);
        adapt_row(linear, own, row, &made);
        return rounded<T>(logistic(widen(made)));
    }

    void feed(const DecoderLayer<T>& layer, T* output) {
        if (step_->adapters) {
            Parts made = {{&layer.gate, step_->gates}};
            if (layer.up.outputs) made.push_back({&layer.up, step_->ups});
            multiply_all(made, step_->normed);
            const int64_t width = layer.gate.outputs;
            member_.each(cuts(width, PANEL), [&](int64_t unit) { activate(layer, side_by_side(width, unit, PANEL)); });
        } else {
            const PartTimer timer(member_, LINEAR_LAYERS);
            const Inputs<T> inputs(step_->rows, step_->normed, layer.gate);
            member_.each(inputs.units(layer.gate), [&](int64_t unit) {
                const Cut cut = inputs.cut(layer.gate, unit);
                multiply(layer.gate, inputs, step_->gates, cut);
                if (layer.up.outputs) multiply(layer.up, inputs, step_->ups, cut);
                activate(layer, cut);
            });
        }
        multiply_all({{&layer.down, output}}, step_->gates);
    }

    void activate(const DecoderLayer<T>& layer, const Cut& cut) {
        const int64_t width = layer.gate.outputs;
        for (int64_t at = 0; at < step_->rows * width; at += width)
            cut.each([&](int64_t begin, int64_t end) {
                T *gates = step_->gates + at, *ups = layer.up.outputs ? step_->ups + at : nullptr;
                ::gate(layer.activation, gates, ups, begin, end, layer.xielu);
            });
    }
};
