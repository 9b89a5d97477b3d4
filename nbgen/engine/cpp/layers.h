// A step through the layers of a decoder, and where asked for also from token ids and to logits. Layers have norms before
// attention and feed-forward, after them or both; rotary positions or recurrences; feed-forwards with or without gate, or experts.
// Numbers are rounded where transformers' modules round theirs.

#pragma once

#include "streams.h"

#define LAYERS

// One team member's (thread's) pass through the layers of a step, phase by phase.
template <typename T>
class Walk : StreamsMember<T> {
    using StepMember<T>::member_, StepMember<T>::step_, StepMember<T>::hidden_;
    using StepMember<T>::multiply_all, StepMember<T>::lay, StepMember<T>::adapt_row, StepMember<T>::leave;
    using StepMember<T>::normalize_all, StepMember<T>::add_and_normalize;
    using AttendingMember<T>::open, AttendingMember<T>::attend;
    using StreamsMember<T>::begin_streams, StreamsMember<T>::end_streams, StreamsMember<T>::predict;
    using StreamsMember<T>::add_smaller_way, StreamsMember<T>::correct, StreamsMember<T>::add_to_streams;
    using typename StepMember<T>::Parts;

  public:
    // An upper bound of the phases for `count` layers. A layer has 20 up to attention, 3 of attention and 33 after it, and more if
    // it mixes streams, or has attention and a recurrence whose products have `counts`. There are 6 phases before all layers and 2
    // after them; with streams 7 and 4, plus 4 for each stream both before and after.
    static int64_t phases(const Step<T>& step, const DecoderLayer<T>* layers, int64_t count) {
        int64_t sum = step.alternating ? 11 + 8 * step.alternating->count : 8;
        for (const DecoderLayer<T>* layer = layers; layer < layers + count; layer++)
            sum += 56 + (layer->mixing ? 9 : 0) + (layer->recurrence && layer->query.outputs ? 20 : 0);
        return sum;
    }

    using StreamsMember<T>::StreamsMember;

    void through(const DecoderLayer<T>* layers, int64_t count) {
        if (step_->embeddings) embed(*step_->embeddings);
        const DecoderLayer<T>*leaving = layers + count - 1, *before = nullptr;
        while (leaving > layers && !leaving->brings()) leaving--;
        for (const DecoderLayer<T>* layer = layers; layer < layers + count; layer++) {
            const bool leaves = layer == leaving && step_->last;
            if (before) leave_layer(*before, &layer->input_norm);
            else add_and_normalize(nullptr, &layer->input_norm, layer->width());
            if (layer->mixing) predict(*layer);
            before = layer;
            if (layer->recurrence) remember(*layer, *layer->recurrence, leaves && !layer->query.outputs);
            if (layer->query.outputs) {
                open(*layer, leaves);
                attend(*layer);
            }
            close(*layer);
        }
        leave_layer(*before, step_->norm);
        if (step_->alternating) {
            end_streams(*step_->alternating);
            add_and_normalize(nullptr, step_->norm, before->width());
        }
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
        if (step_->alternating) begin_streams(*step_->alternating);
    }

    void give(const PerLayer<T>& layers) {
        const int64_t width = layers.projection.outputs;
        multiply_all({{&layers.projection, step_->given}}, hidden_);
        std::vector<T> token(width);
        member_.each(step_->rows, [&](int64_t row) {
            T* own = step_->given + row * width;
            const int64_t id = step_->ids[row] < layers.embeddings.outputs ? step_->ids[row] : 0;
            read_output(layers.embeddings, id, token.data());
            scale_all(layers.embedding, token.data(), width);
            scale_all(layers.projected, own, width);
            for (int64_t at = 0; at < width; at += layers.width) normalize_if(layers.norm, own + at, layers.width, own + at);
            for (int64_t i = 0; i < width; i++) narrow(rounded<T>(widen(own[i]) + widen(token[i])) * layers.both, own + i);
        });
    }

    void score(const Linear<T>& head) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        const Inputs<T> inputs(step_->rows, step_->normed, head, member_.members(), lay(step_->normed, head));
        member_.each(inputs.units(head), [&](int64_t unit) {
            const Cut cut = inputs.cut(head, unit);
            multiply(head, inputs, step_->rounded_scores, cut);
            for (int64_t at = 0; at < step_->rows * head.outputs; at += head.outputs)
                cut.each([&](int64_t begin, int64_t end) {
                    finish_scores(step_->scales, step_->rounded_scores, at + begin, at + end, step_->scores);
                });
        });
    }

    // A recurrence's result goes where attention's would be; intermediate results use buffers that are only needed later.
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
        if (own.result.outputs) multiply_all({{&own.result, step_->gates}}, step_->attended);
    }

    // The rest of a layer after attention. Its last result is not yet added to the hidden states: `leave_layer` does that.
    void close(const DecoderLayer<T>& layer) {
        if (layer.output.outputs) multiply_all({{&layer.output, step_->projected}}, step_->attended);
        if (layer.output.outputs && layer.feeds()) add_attended(layer);
        if (layer.gate.outputs) feed(layer, layer.sparse ? step_->attended : step_->projected);
        if (layer.sparse) mix(*layer.sparse, layer.width());
        if (layer.sparse && layer.gate.outputs) add_beside(layer, *layer.sparse);
        if (layer.given_gate.outputs) add_given(layer);
    }

    void add_attended(const DecoderLayer<T>& layer) {
        if (layer.mixing) return add_smaller_way(layer);
        if (layer.recurrence && layer.query.outputs) add_all(step_->gates, layer.width(), step_->projected);
        if (layer.beside_attention && layer.feed_norm) normalize_all(layer.feed_norm, layer.width());
        add_and_normalize(&layer.attended_norm, layer.beside_attention ? nullptr : &layer.feed_norm, layer.width());
    }

    void leave_layer(const DecoderLayer<T>& layer, const Norm<T>* next) {
        if (layer.mixing) return add_to_streams(layer);
        add_and_normalize(&layer.last_norm(), next, layer.width(), layer.leaves);
    }

    // Adds the per-layer inputs, which the layer's result gates.
    void add_given(const DecoderLayer<T>& layer) {
        const int64_t width = layer.given_gate.outputs, stride = step_->per_layer->projection.outputs;
        add_and_normalize(&layer.fed_norm, nullptr, layer.width());
        if (layer.mixing) correct(layer);
        multiply_all({{&layer.given_gate, step_->gates}}, hidden_);
        member_.each(step_->rows, [&](int64_t row) {
            const T* given = step_->given + row * stride + layer.first_given;
            ::gate(layer.activation, step_->gates + row * width, given, 0, width);
        });
        multiply_all({{&layer.given_output, step_->projected}}, step_->gates);
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

    void add_all(const T* more, int64_t width, T* own) {
        member_.each(step_->rows, [&](int64_t row) {
#pragma omp simd
            for (int64_t i = row * width; i < (row + 1) * width; i++) narrow(widen(own[i]) + widen(more[i]), own + i);
        });
    }

    // Adds the result of the feed-forward beside the experts, which is in `attended`, to theirs.
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
        const bool thins = std::isfinite(layer.sparsity);
        if (step_->adapters || thins || layer.gate.counts) {
            Parts made = {{&layer.gate, step_->gates}};
            if (layer.up.outputs) made.push_back({&layer.up, step_->ups});
            multiply_all(made, step_->normed);
            const int64_t width = layer.gate.outputs;
            if (thins)
                member_.each(step_->rows, [&](int64_t row) { thin(layer.sparsity, step_->gates + row * width, width); });
            member_.each(cuts(width, PANEL), [&](int64_t unit) { activate(layer, side_by_side(width, unit, PANEL)); });
        } else {
            const PartTimer timer(member_, LINEAR_LAYERS);
            T* laid = lay(step_->normed, layer.gate);
            const Inputs<T> inputs(step_->rows, step_->normed, layer.gate, member_.members(), laid);
            const auto open = [&](T* gates, const T* ups, int64_t count) {
                ::gate(layer.activation, gates, ups, 0, count, layer.xielu);
            };
            member_.each(inputs.units(layer.gate), [&](int64_t unit) {
                const Cut cut = inputs.cut(layer.gate, unit);
                if (inputs.multiply_gated(layer.gate, layer.up, step_->gates, cut, open)) return;
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
