// Several streams of a row's hidden state (AltUp, Baykal et al. 2023): a layer computes only the first, and mixes all of them
// before and after. Also the low-rank product that runs beside attention there (LAuReL, Menghani et al. 2024).

#pragma once

#include "attending.h"

constexpr int64_t MOST_STREAMS = 8;

template <typename T>
class StreamsMember : protected AttendingMember<T> {
  protected:
    using AttendingMember<T>::AttendingMember, StepMember<T>::member_, StepMember<T>::step_, StepMember<T>::hidden_;
    using StepMember<T>::multiply_all, StepMember<T>::adapt_row, StepMember<T>::add_and_normalize, StepMember<T>::stream;

    // Makes the streams from the hidden state, which is the first of them.
    void begin_streams(const Alternating<T>& all) {
        for (int64_t i = 1; i < all.count; i++) {
            multiply_all({{all.begins + i - 1, step_->projected}}, hidden_);
            member_.each(step_->rows, [&](int64_t row) {
                as_large(hidden_ + row * all.width, step_->projected + row * all.width, all.width, stream(i, row));
            });
        }
        member_.each(step_->rows, [&](int64_t row) { std::copy_n(hidden_ + row * all.width, all.width, stream(0, row)); });
    }

    // The hidden state becomes the streams' mean.
    void end_streams(const Alternating<T>& all) {
        for (int64_t i = 1; i < all.count; i++) {
            multiply_all({{all.ends + i - 1, step_->projected}}, stream(i, 0));
            member_.each(step_->rows, [&](int64_t row) {
                as_large(stream(0, row), step_->projected + row * all.width, all.width, stream(i, row));
            });
        }
        member_.each(step_->rows, [&](int64_t row) {
            for (int64_t c = 0; c < all.width; c++) {
                float sum = 0;
                for (int64_t i = 0; i < all.count; i++) sum += widen(stream(i, row)[c]);
                narrow(sum / all.count, hidden_ + row * all.width + c);
            }
        });
    }

    // Before the layer computes the first stream, adds to each stream the layer's mix of all of them.
    void predict(const DecoderLayer<T>& layer) {
        const int64_t width = step_->alternating->width;
        member_.each(step_->rows, [&](int64_t row) {
            T kinds[MOST_STREAMS], shares[MOST_STREAMS * MOST_STREAMS];
            route(*layer.mixing, stream(0, row), row, kinds);
            multiply_small(layer.mixing->predicts, kinds, row, shares);
            for (int64_t begin = 0; begin < width; begin += BLOCK) mix_block(row, begin, std::min(BLOCK, width - begin), shares);
            T* own = std::copy_n(stream(0, row), width, hidden_ + row * width) - width;
            normalize_if(layer.input_norm, own, width, step_->normed + row * width);
        });
    }

    // Adds attention's result to the hidden state, and then attention's input and a low-rank product of that input.
    void add_smaller_way(const DecoderLayer<T>& layer) {
        const Mixing<T>& own = *layer.mixing;
        const int64_t width = layer.width();
        multiply_all({{&own.left, step_->ups}}, step_->normed);
        multiply_all({{&own.right, step_->gates}}, step_->ups);
        add_and_normalize(&layer.attended_norm, nullptr, width);
        member_.each(step_->rows, [&](int64_t row) {
            T *made = step_->gates + row * width, *input = step_->normed + row * width, *hidden = hidden_ + row * width;
            normalize_if(own.beside_norm, made, width, made);
#pragma omp simd
            for (int64_t i = 0; i < width; i++) {
                const float beside = rounded<T>(widen(input[i]) + widen(made[i]));
                narrow(rounded<T>(widen(hidden[i]) + beside) / std::sqrt(2.0f), hidden + i);
            }
            normalize_if(layer.feed_norm, hidden, width, input);
        });
    }

    // After the layer, adds a share of the first stream's change to every stream. The hidden state is the first stream's new value.
    void correct(const DecoderLayer<T>& layer) {
        const int64_t count = step_->alternating->count, width = step_->alternating->width;
        const Mixing<T>& own = *layer.mixing;
        member_.each(step_->rows, [&](int64_t row) {
            static thread_local std::vector<float> changes;
            changes.resize(width);
            T kinds[MOST_STREAMS], shares[MOST_STREAMS], *hidden = hidden_ + row * width, *first = stream(0, row);
            route(own, hidden, row, kinds);
            multiply_small(own.corrects, kinds, row, shares);
#pragma omp simd
            for (int64_t c = 0; c < width; c++) changes[c] = rounded<T>(widen(hidden[c]) - widen(first[c]));
            for (int64_t i = 0; i < count; i++) {
                const float share = rounded<T>(widen(shares[i]) + 1.0f);
                T* to = stream(i, row);
#pragma omp simd
                for (int64_t c = 0; c < width; c++) narrow(rounded<T>(changes[c] * share) + widen(to[c]), to + c);
            }
            for (int64_t c = 0; c < width; c++)
                narrow(widen(first[c]) * (own.scales ? widen(own.scales[c]) : 1.0f), hidden + c);
        });
    }

    // Adds the result of the layer's own inputs (`PerLayer`) to all streams but the first.
    void add_to_streams(const DecoderLayer<T>& layer) {
        const int64_t width = step_->alternating->width;
        member_.each(step_->rows, [&](int64_t row) {
            T* made = step_->projected + row * width;
            normalize_if(layer.given_norm, made, width, made);
            for (int64_t i = 1; i < step_->alternating->count; i++) {
                T* own = stream(i, row);
#pragma omp simd
                for (int64_t c = 0; c < width; c++) narrow(widen(own[c]) + widen(made[c]), own + c);
            }
        });
    }

  private:
    static constexpr int64_t BLOCK = 64;

    static float mean_square(const T* numbers, int64_t width) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += widen(numbers[i]) * widen(numbers[i]);
        return sum / width;
    }

    // Scales the `vector` to the root mean square of the `other`.
    static void as_large(const T* other, const T* vector, int64_t width, T* to) {
        const float large = std::sqrt(mean_square(other, width)), own = std::sqrt(std::max(mean_square(vector, width), 1e-5f));
#pragma omp simd
        for (int64_t i = 0; i < width; i++) narrow(rounded<T>(widen(vector[i]) * large) / own, to + i);
    }

    // How much of each kind (modality, in transformers) one of a row's streams is.
    void route(const Mixing<T>& own, const T* of, int64_t row, T* kinds) {
        static thread_local std::vector<T> normed, weights;
        const int64_t width = own.routes.inputs;
        normed.resize(width);
        weights.resize(width);
        normalize(own.routed_norm, of, width, normed.data());
        scale_all(own.scale, normed.data(), width);
        for (int64_t i = 0; i < own.routes.outputs; i++) {
            read_output(own.routes, i, weights.data());
            narrow(dot(normed.data(), weights.data(), width), kinds + i);
        }
        adapt_row(own.routes, normed.data(), row, kinds);
        for (int64_t i = 0; i < own.routes.outputs; i++) narrow(tangent(widen(kinds[i])), kinds + i);
    }

    // A product with fewer inputs than fit into a vector, and what the row's adapter adds to it.
    void multiply_small(const Linear<T>& linear, const T* input, int64_t row, T* output) {
        const int64_t inputs = linear.inputs;
        T weights[2 * MOST_STREAMS];
        const auto product = [&](const T* by) {
            float sum = 0;
            for (int64_t k = 0; k < inputs; k++) sum += widen(input[k]) * widen(by[k]);
            return sum;
        };
        const bool adapts = step_->adapters && linear.down;
        const int64_t first = adapts ? step_->adapters[2 * row] : 0, end = adapts ? step_->adapters[2 * row + 1] : 0;
        for (int64_t n = 0; n < linear.outputs; n++) {
            read_output(linear, n, weights);
            float made = rounded<T>(product(weights));
            for (int64_t c = first; c < end; c++)
                made += rounded<T>(product(linear.down + c * inputs)) * widen(linear.up[c * linear.outputs + n]);
            narrow(made, output + n);
        }
    }

    // Adds to each of a row's streams its shares of all, `shares` `[streams, streams]`, for `some` numbers from `begin` on.
    void mix_block(int64_t row, int64_t begin, int64_t some, const T* shares) {
        const int64_t count = step_->alternating->count;
        float was[MOST_STREAMS][BLOCK];
        for (int64_t i = 0; i < count; i++)
            for (int64_t c = 0; c < some; c++) was[i][c] = widen(stream(i, row)[begin + c]);
        for (int64_t i = 0; i < count; i++) {
            float sums[BLOCK] = {};
            for (int64_t of = 0; of < count; of++) {
                const float share = widen(shares[i * count + of]);
#pragma omp simd
                for (int64_t c = 0; c < some; c++) sums[c] += share * was[of][c];
            }
            T* own = stream(i, row) + begin;
            for (int64_t c = 0; c < some; c++) narrow(rounded<T>(sums[c]) + was[i][c], own + c);
        }
    }
};
