// Numbers that a model multiplies or divides by on its way, and how it bends its scores.

#pragma once

#include <type_traits>

#include "linear.h"

// A layer's product, each output of which counts as much as its `counts` `[outputs]` say, if these are not null.
template <typename T>
struct Counted : Linear<T> {
    const float* counts;
};

// What a model multiplies its embeddings by, and what its layers add; and what it makes of its scores: it divides them by
// `divisor`, and bends them so that none is above `cap`, if there is one.
struct Scales {
    float embedding, residual, divisor, cap;
};

template <typename T>
void scale_all(float scale, T* numbers, int64_t count) {
    if (scale == 1.0f) return;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) narrow(widen(numbers[i]) * scale, numbers + i);
}

// A score as a model makes it of what its head gives.
template <typename T>
float finished(float score, const Scales& scales) {
    if (scales.divisor != 1.0f) score = rounded<T>(score / scales.divisor);
    if (scales.cap == 0.0f) return score;
    return rounded<T>(rounded<T>(tangent(rounded<T>(score / scales.cap))) * scales.cap);
}

// Those from `begin` to `end`, one by one, as float.
template <typename T>
void finish_scores(const Scales& scales, const T* scores, int64_t begin, int64_t end, float* to) {
    const bool plain = scales.divisor == 1.0f && scales.cap == 0.0f;
    if (plain && std::is_same_v<T, float>) return;
    if (plain)
        for (int64_t i = begin; i < end; i++) to[i] = widen(scores[i]);
    else
#pragma omp simd
        for (int64_t i = begin; i < end; i++) to[i] = finished<T>(widen(scores[i]), scales);
}
