// Factors that a model multiplies or divides by, and how it caps its scores (logits).

#pragma once

#include <type_traits>

#include "linear.h"

// A linear layer whose outputs are multiplied by `counts` `[outputs]`, if these are not null.
template <typename T>
struct Counted : Linear<T> {
    const float* counts;
};

// A model multiplies its embeddings by `embedding`, and what its layers add by `residual`. It divides its scores by `divisor`, and
// bends them so that none is above `cap`, if that is not 0.
struct Scales {
    float embedding, residual, divisor, cap;
};

template <typename T>
void scale_all(float scale, T* numbers, int64_t count) {
    if (scale == 1.0f) return;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) narrow(widen(numbers[i]) * scale, numbers + i);
}

// A score, from an output of the head.
template <typename T>
float finished(float score, const Scales& scales) {
    if (scales.divisor != 1.0f) score = rounded<T>(score / scales.divisor);
    if (scales.cap == 0.0f) return score;
    return rounded<T>(rounded<T>(tangent(rounded<T>(score / scales.cap))) * scales.cap);
}

// Finishes the scores `begin` to `end` as float.
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
