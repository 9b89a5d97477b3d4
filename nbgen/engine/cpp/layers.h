// A step through the layers of a decoder like Llama's: norms of root mean squares, rotary positions, a gated feed-forward of
// silu; and where it is asked for, from ids to scores. Numbers are rounded where transformers' modules round theirs.

#pragma once

#include "attention.h"
#include "part_timer.h"
#include "products.h"

#define LAYERS

// A norm of root mean squares (Zhang and Sennrich 2019); none is a null weight.
template <typename T>
struct Norm {
    const T* weight;
    float epsilon;
};

template <typename T>
struct DecoderLayer {
    Norm<T> input_norm, post_norm, query_norm, key_norm;
    Linear<T> query, key, value, output, gate, up, down;
    AttentionLayer attention;
    T* keys;
    T* values;
    const Batch* batch;
};

// `slots` `[rows]` is where new keys and values go; `adapters` `[rows, 2]` are each row's first column and one past its last of
// the stacked adapters, null where no row has any; `positions` `[rows]` are rows of cosines and sines `[…, dim]`. What is made
// meanwhile goes from `normed` on, with room for the widest layer. All that follows may be null. `last` is what is left of the
// step once the last layer's keys and values are in the cache: the `wanted` of its rows, in order, with room where this one
// has it. Rows begin as those of `ids` `[rows]` in the `embeddings`, whose outputs are tokens. In the end `norm` makes `normed` of
// them, and of that the `head` `scores` `[rows, outputs]`, which are rounded as `rounded_scores`, the same where T is float.
template <typename T>
struct Step {
    int64_t rows, threads;
    const int64_t* slots;
    const int64_t* adapters;
    const int64_t* positions;
    const T* cosines;
    const T* sines;
    T *normed, *queries, *new_keys, *new_values, *attended, *projected, *gates, *ups;
    float* scratch;
    const Step* last;
    const int64_t* wanted;
    const int64_t* ids;
    const Linear<T>* embeddings;
    const Norm<T>* norm;
    const Linear<T>* head;
    T* rounded_scores;
    float* scores;
};

template <typename T>
void normalize(const Norm<T>& norm, const T* input, int64_t width, T* output) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += widen(input[i]) * widen(input[i]);
    const float scale = 1.0f / std::sqrt(squares / width + norm.epsilon);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) narrow(widen(norm.weight[i]) * rounded<T>(widen(input[i]) * scale), output + i);
}

// Rotary positions (Su et al. 2021) of one head, halves against each other.
template <typename T>
void rotate(const T* input, const T* cosines, const T* sines, int64_t dim, T* output) {
    const int64_t half = dim / 2;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = widen(input[i]), b = widen(input[i + half]);
        float first = rounded<T>(a * widen(cosines[i])) + rounded<T>(-b * widen(sines[i]));
        float second = rounded<T>(b * widen(cosines[i + half])) + rounded<T>(a * widen(sines[i + half]));
        narrow(first, output + i);
        narrow(second, output + i + half);
    }
}

// A member's way through the layers of a step, phase by phase.
template <typename T>
class Walk {
  public:
    static constexpr int64_t PHASES = 19;  // of a layer, at most: 8 to open it, 2 of attention, 9 to close it
    static constexpr int64_t ENDS = 2;     // before all layers and after them

    Walk(Team::Member& member, const Step<T>& step, T* hidden) : member_(member), step_(&step), hidden_(hidden) {}

    void through(const DecoderLayer<T>* layers, int64_t count) {
        if (step_->embeddings) embed(*step_->embeddings);
        for (const DecoderLayer<T>* layer = layers; layer < layers + count; layer++) {
            const bool last = layer + 1 == layers + count;
            open(*layer, layer > layers, last && step_->last);
            attend(*layer);
            close(*layer, last);
        }
        if (step_->head) score(*step_->head);
    }

  private:
    using Parts = std::vector<typename Products<T>::Part>;

    void embed(const Linear<T>& table) {
        member_.each(step_->rows, [&](int64_t row) { read_output(table, step_->ids[row], hidden_ + row * table.inputs); });
    }

    void score(const Linear<T>& head) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        const Inputs<T> inputs(step_->rows, step_->normed, head);
        member_.each(panels(head), [&](int64_t unit) {
            const int64_t begin = unit * PANEL, end = std::min(head.outputs, begin + PANEL);
            multiply(head, inputs, step_->rounded_scores, begin, end);
            if constexpr (std::is_same_v<T, float>) return;
            for (int64_t row = 0; row < step_->rows; row++)
                for (int64_t i = row * head.outputs + begin; i < row * head.outputs + end; i++)
                    step_->scores[i] = widen(step_->rounded_scores[i]);
        });
    }

    // All before attention: queries are made, keys and values are in the cache. `adds` what the layer before has left, and
    // `leaves` the rows that nobody wants.
    void open(const DecoderLayer<T>& layer, bool adds, bool leaves) {
        const int64_t heads = layer.attention.heads, vectors = heads + layer.attention.kv_heads;
        const Parts made = {{&layer.key, step_->new_keys}, {&layer.value, step_->new_values}, {&layer.query, step_->queries}};
        add_and_normalize(&layer.input_norm, layer.query.inputs, adds);
        if (!leaves) {
            multiply_all(made, step_->normed);
            place(layer, 0, vectors);
            return;
        }
        multiply_all({made[0], made[1]}, step_->normed);
        place(layer, heads, vectors);
        leave(layer.query.inputs);
        multiply_all({made[2]}, step_->normed);
        place(layer, 0, heads);
    }

    // Goes on with the last step, whose rows move together.
    void leave(int64_t width) {
        const Step<T>& last = *step_->last;
        member_.each(1, [&](int64_t) {
            for (int64_t i = 0; i < last.rows; i++) {
                const int64_t row = step_->wanted[i];
                std::memmove(hidden_ + i * width, hidden_ + row * width, width * sizeof(T));
                std::memmove(step_->normed + i * width, step_->normed + row * width, width * sizeof(T));
            }
        });
        step_ = &last;
    }

    void attend(const DecoderLayer<T>& layer) {
        const PartTimer timer(member_, ATTENTION);
        Attention<T>{*layer.batch, layer.attention, step_->queries, layer.keys, layer.values, step_->attended, step_->scratch}
            .run(member_);
    }

    // All after attention, of which the `last` layer leaves nothing to be added.
    void close(const DecoderLayer<T>& layer, bool last) {
        multiply_all({{&layer.output, step_->projected}}, step_->attended);
        add_and_normalize(&layer.post_norm, layer.query.inputs, true);
        feed(layer);
        if (last) add_and_normalize(step_->norm, layer.query.inputs, true);
    }

    // The last product on top of `hidden`, and that normed for the next.
    void add_and_normalize(const Norm<T>* norm, int64_t width, bool adds) {
        member_.each(step_->rows, [&](int64_t row) {
            T* own = hidden_ + row * width;
            const T* more = step_->projected + row * width;
            if (adds)
                for (int64_t i = 0; i < width; i++) narrow(widen(own[i]) + widen(more[i]), own + i);
            if (norm) normalize(*norm, own, width, step_->normed + row * width);
        });
    }

    void multiply_all(const Parts& parts, const T* input) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        const Products<T> products(parts, step_->rows, input);
        member_.each(products.units, products);
        adapt_all(parts, input);
    }

    void adapt_all(const Parts& parts, const T* input) {
        if (!step_->adapters) return;
        member_.each(step_->rows * parts.size(), [&](int64_t i) {
            const int64_t row = i / parts.size(), *columns = step_->adapters + 2 * row;
            const auto& [linear, output] = parts[i % parts.size()];
            if (linear->down && columns[0] < columns[1])
                adapt(*linear, input + row * linear->inputs, columns[0], columns[1], output + row * linear->outputs);
        });
    }

    // Of each row's vectors, which are its queries and then its keys, those from `first` to `end`: keys go into the cache, their
    // values beside them, and queries are rotated where they are.
    void place(const DecoderLayer<T>& layer, int64_t first, int64_t end) {
        const int64_t heads = layer.attention.heads, kv_heads = layer.attention.kv_heads, dim = layer.attention.dim;
        std::vector<T> work(dim);
        member_.each(step_->rows * (end - first), [&](int64_t i) {
            const int64_t row = i / (end - first), vector = first + i % (end - first);
            const int64_t turn = step_->positions[row] * dim;
            const T *cosines = step_->cosines + turn, *sines = step_->sines + turn;
            if (vector < heads) {
                T* query = step_->queries + (row * heads + vector) * dim;
                rotate(normed(layer.query_norm, query, dim, work), cosines, sines, dim, query);
                return;
            }
            const int64_t head = vector - heads, fresh = (row * kv_heads + head) * dim;
            const int64_t cached = (head * layer.attention.slots + step_->slots[row]) * dim;
            rotate(normed(layer.key_norm, step_->new_keys + fresh, dim, work), cosines, sines, dim, layer.keys + cached);
            std::copy_n(step_->new_values + fresh, dim, layer.values + cached);
        });
    }

    static const T* normed(const Norm<T>& norm, const T* head, int64_t dim, std::vector<T>& work) {
        if (norm.weight)
            normalize(norm, head, dim, work.data());
        else
            std::copy_n(head, dim, work.data());
        return work.data();
    }

    void feed(const DecoderLayer<T>& layer) {
        if (step_->adapters) {
            multiply_all({{&layer.gate, step_->gates}, {&layer.up, step_->ups}}, step_->normed);
            member_.each(panels(layer.gate), [&](int64_t unit) { activate(layer, unit); });
        } else {
            const PartTimer timer(member_, LINEAR_LAYERS);
            const Inputs<T> inputs(step_->rows, step_->normed, layer.gate);
            member_.each(panels(layer.gate), [&](int64_t unit) {
                const int64_t begin = unit * PANEL, end = std::min(layer.gate.outputs, begin + PANEL);
                multiply(layer.gate, inputs, step_->gates, begin, end);
                multiply(layer.up, inputs, step_->ups, begin, end);
                activate(layer, unit);
            });
        }
        multiply_all({{&layer.down, step_->projected}}, step_->gates);
    }

    void activate(const DecoderLayer<T>& layer, int64_t unit) {
        const int64_t width = layer.gate.outputs, begin = unit * PANEL, end = std::min(width, begin + PANEL);
        for (int64_t row = 0; row < step_->rows; row++) {
            T* gates = step_->gates + row * width;
            const T* ups = step_->ups + row * width;
#pragma omp simd
            for (int64_t i = begin; i < end; i++) narrow(rounded<T>(silu(widen(gates[i]))) * widen(ups[i]), gates + i);
        }
    }

    Team::Member& member_;
    const Step<T>* step_;
    T* hidden_;
};
