// What all parts of a step through a decoder's layers need of a member of the team.

#pragma once

#include <initializer_list>
#include <utility>

#include "decoder.h"
#include "part_timer.h"
#include "products.h"

template <typename T>
class StepMember {
  public:
    StepMember(Team::Member& member, const Step<T>& step, T* hidden)
        : member_(member), step_(&step), hidden_(hidden), most_rows_(step.rows) {}

  protected:
    // A product, and where its output goes.
    struct Part : Products<T>::Part {
        Part(const Linear<T>* linear, T* output) : Products<T>::Part{linear, output}, counts(nullptr) {}
        Part(const Counted<T>* linear, T* output) : Products<T>::Part{linear, output}, counts(linear->counts) {}

        const float* counts;
    };
    using Parts = std::vector<Part>;

    void multiply_all(const Parts& parts, const T* input) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        T* laid = lay(input, *parts[0].linear);
        const Products<T> products({parts.begin(), parts.end()}, step_->rows, input, member_.members(), laid);
        member_.each(products.units, products);
        adapt_all(parts, input);
        for (const Part& part : parts)
            if (part.counts) count(part.counts, part.linear->outputs, part.output);
    }

    // The step's rows as tiles read them, or as bytes, in scratch memory until the next product; null if they are read as they lie.
    T* lay([[maybe_unused]] const T* input, [[maybe_unused]] const Linear<T>& linear) {
        [[maybe_unused]] const int64_t rows = step_->rows, inputs = linear.inputs;
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (come_laid<T>(rows)) {
                T* laid = reinterpret_cast<T*>(step_->scratch);
                member_.each(cuts(rows, BLOCK), [&](int64_t block) { lay_block(rows, inputs, input, block * BLOCK, laid); });
                return laid;
            }
#endif
#ifdef BYTE_PRODUCTS
        if constexpr (std::is_same_v<T, float>)
            if (come_as_bytes(linear, rows)) {
                ByteRows made(rows, inputs, step_->scratch);
                member_.each(rows, [&](int64_t row) { made.fix(row, input + row * inputs); });
                return step_->scratch;
            }
#endif
        return nullptr;
    }

    void count(const float* counts, int64_t width, T* output) {
        member_.each(step_->rows, [&](int64_t row) {
            T* own = output + row * width;
#pragma omp simd
            for (int64_t i = 0; i < width; i++) narrow(widen(own[i]) * counts[i], own + i);
        });
    }

    void adapt_all(const Parts& parts, const T* input) {
        if (!step_->adapters) return;
        member_.each(step_->rows * parts.size(), [&](int64_t i) {
            const int64_t row = i / parts.size();
            const Part& part = parts[i % parts.size()];
            const Linear<T>& linear = *part.linear;
            adapt_row(linear, input + row * linear.inputs, row, part.output + row * linear.outputs);
        });
    }

    void adapt_row(const Linear<T>& linear, const T* input, int64_t row, T* output) {
        if (!step_->adapters || !linear.down) return;
        const int64_t *columns = step_->adapters + 2 * row;
        if (columns[0] < columns[1]) adapt(linear, input, columns[0], columns[1], output);
    }

    // If `was`: adds the last product, normed by it, to `hidden`, times `counts`. If `next`: writes `hidden`, normed, to `normed`.
    void add_and_normalize(const Norm<T>* was, const Norm<T>* next, int64_t width, float counts = 1.0f) {
        member_.each(step_->rows, [&](int64_t row) {
            T* own = hidden_ + row * width;
            T* more = step_->projected + row * width;
            if (was) {
                if (*was) normalize_if(*was, more, width, more);
                scale_all(step_->scales.residual, more, width);
                for (int64_t i = 0; i < width; i++) narrow(widen(own[i]) + widen(more[i]), own + i);
                scale_all(counts, own, width);
            }
            if (next) normalize_if(*next, own, width, step_->normed + row * width);
        });
    }

    void normalize_all(const Norm<T>& norm, int64_t width, float scale = 1.0f) {
        member_.each(step_->rows, [&](int64_t row) {
            T* own = step_->normed + row * width;
            normalize_if(norm, hidden_ + row * width, width, own);
            scale_all(scale, own, width);
        });
    }

    // The stream of this number of a row.
    T* stream(int64_t number, int64_t row) const {
        return step_->streams + (number * most_rows_ + row) * step_->alternating->width;
    }

    // Goes on with the `last` of the step: its wanted rows of the `moved` buffers, of so many numbers each, move to the beginning.
    void leave(std::initializer_list<std::pair<T*, int64_t>> moved) {
        const Step<T>& last = *step_->last;
        const auto move = [&](T* numbers, int64_t width) {
            for (int64_t i = 0; i < last.rows; i++)
                std::memmove(numbers + i * width, numbers + step_->wanted[i] * width, width * sizeof(T));
        };
        member_.each(1, [&](int64_t) {
            for (const auto& [numbers, width] : moved) move(numbers, width);
            for (int64_t i = 0; step_->alternating && i < step_->alternating->count; i++)
                move(stream(i, 0), step_->alternating->width);
        });
        step_ = &last;
    }

    Team::Member& member_;
    const Step<T>* step_;
    T* hidden_;
    const int64_t most_rows_;
};
