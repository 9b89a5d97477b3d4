// Attention in a step through the layers of a decoder, from a layer's normed input on: makes, norms and rotates heads, and writes
// keys and values to the cache.

#pragma once

#include "heads.h"
#include "step_member.h"

template <typename T>
class AttendingMember : protected StepMember<T> {
  protected:
    using StepMember<T>::StepMember, StepMember<T>::member_, StepMember<T>::step_, StepMember<T>::hidden_;
    using StepMember<T>::multiply_all, StepMember<T>::leave;
    using typename StepMember<T>::Part, typename StepMember<T>::Parts;

    // Makes queries, and writes keys and values to the cache. If `leaves`, the step goes on with the wanted rows only.
    void open(const DecoderLayer<T>& layer, bool leaves) {
        const int64_t heads = layer.attention.heads, vectors = heads + layer.attention.kv_heads;
        if (layer.joined) return open_joined(layer, leaves);
        if (layer.compressed.outputs) return open_compressed(layer, leaves);
        const Part query = {&layer.query, layer.opened ? step_->gates : step_->queries};
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
        const int64_t beside = layer.recurrence ? layer.width() : 0;
        leave({{hidden_, layer.width()}, {step_->normed, layer.width()}, {step_->given, given}, {step_->gates, beside}});
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

    void attend(const DecoderLayer<T>& layer) {
        const PartTimer timer(member_, ATTENTION);
        with_kept<T>(layer.attention, layer.keys, layer.values, [&](auto* keys, auto* values) {
            using Kept = std::remove_pointer_t<decltype(keys)>;
            Attention<T, Kept>{*layer.batch, layer.attention, step_->queries, keys, values, step_->attended, step_->scratch}
                .run(member_);
        });
        if (!layer.opened) return;
        const int64_t dim = layer.attention.dim, heads = layer.attention.heads;
        member_.each(step_->rows * heads, [&](int64_t vector) {
            T* own = step_->attended + vector * dim;
            const T* opens = step_->gates + (2 * vector + 1) * dim;
#pragma omp simd
            for (int64_t i = 0; i < dim; i++) narrow(widen(own[i]) * rounded<T>(logistic(widen(opens[i]))), own + i);
        });
    }

  private:
    // Norms queries, keys or both, where one norm covers all heads together.
    void normalize_heads(const DecoderLayer<T>& layer, bool queries, bool keys) {
        if (!layer.all_heads) return;
        const int64_t heads = layer.query.outputs, kv_heads = layer.key.outputs;
        member_.each(step_->rows, [&](int64_t row) {
            T *query = step_->queries + row * heads, *key = step_->new_keys + row * kv_heads;
            if (queries) normalize_if(layer.query_norm, query, heads, query);
            if (keys) normalize_if(layer.key_norm, key, kv_heads, key);
        });
    }

    // Takes the vectors `first` to `end` of each row, which are its queries and then its keys. Queries are normed and rotated into
    // `queries`; keys likewise into the cache, together with their values.
    void place(const DecoderLayer<T>& layer, int64_t first, int64_t end) {
        const AttentionLayer& shape = layer.attention;
        const int64_t heads = shape.heads, dim = shape.dim;
        std::vector<T> work(dim), key(dim), value(std::max(dim, shape.value_dim));
        member_.each(step_->rows * (end - first), [&](int64_t i) {
            const int64_t row = i / (end - first), vector = first + i % (end - first), head = vector - heads;
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
            if (layer.compressed.outputs)
                make_expanded(layer, row, head, cosines, sines, work.data(), key.data(), value.data());
            else
                make_key_and_value(layer, row, head, cosines, sines, work.data(), key.data(), value.data());
            const int64_t cached = head * shape.slots + step_->slots[row];
            with_kept<T>(shape, layer.keys, layer.values, [&](auto* keys, auto* values) {
                convert_all(key.data(), dim, keys + cached * dim);
                convert_all(value.data(), shape.value_dim, values + cached * shape.value_dim);
            });
        });
    }

    void make_key_and_value(const DecoderLayer<T>& layer, int64_t row, int64_t head, const float* cosines, const float* sines,
                            T* work, T* key, T* value) {
        const int64_t dim = layer.attention.dim, fresh = (row * layer.attention.kv_heads + head) * dim;
        const T* made = layer.joined ? joined(layer, row, head, 1 + layer.values_first) : step_->new_keys + fresh;
        const T* own = layer.joined          ? joined(layer, row, head, 2 - layer.values_first)
                       : layer.value.outputs ? step_->new_values + fresh
                                             : made;
        normalize_and_rotate(layer, layer.key_norm, head, made, cosines, sines, work, key);
        normalize_if(layer.value_norm, own, dim, value);
        clip(layer, value);
    }

    // Latent attention: a head's key ends with the part that all heads' keys share.
    void make_expanded(const DecoderLayer<T>& layer, int64_t row, int64_t head, const float* cosines, const float* sines, T* work,
                       T* key, T* value) {
        const AttentionLayer& shape = layer.attention;
        const int64_t own = layer.still, common = shape.dim - own;
        const T* made = step_->new_keys + (row * shape.kv_heads + head) * (own + shape.value_dim);
        std::copy_n(made, own, work);
        std::copy_n(step_->ups + (row + 1) * layer.compressed.outputs - common, common, work + own);
        rotate(layer, work, cosines, sines, key);
        std::copy_n(made + own, shape.value_dim, value);
    }

    // A head's query, key or value, by the number of the `part`, where `joined` heads have all three one behind the other.
    const T* joined(const DecoderLayer<T>& layer, int64_t row, int64_t head, int64_t part) const {
        const int64_t together = layer.joined, first = 3 * (row * layer.attention.heads + head / together * together);
        return step_->gates + (first + part * together + head % together) * layer.attention.dim;
    }
};
