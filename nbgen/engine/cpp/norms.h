// RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016), as families of models have them.

#pragma once

#include <cmath>
#include <cstring>

#include "numbers.h"

// `offset` is added to each `weight`, or is every weight where these are null; without either there is no norm. If it `rounds`,
// numbers are rounded before they are multiplied by weights. If it `centers`, it subtracts the mean first, and `bias` may be set.
template <typename T>
struct Norm {
    const T* weight;
    const T* bias;
    float epsilon, offset;
    int64_t rounds, centers;

    explicit operator bool() const { return weight || offset != 0.0f; }
    float weighs(int64_t i) const { return offset + (weight ? widen(weight[i]) : 0.0f); }
};

template <typename T>
void center_and_normalize(const Norm<T>& norm, const T* input, int64_t width, T* output) {
    const Moments own = moments(input, width);
    const float mean = own.mean, scale = 1.0f / std::sqrt(own.variance + norm.epsilon);
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const float weighed = (widen(input[i]) - mean) * scale * norm.weighs(i);
        narrow(weighed + (norm.bias ? widen(norm.bias[i]) : 0.0f), output + i);
    }
}

template <typename T, typename Given>
void normalize(const Norm<T>& norm, const Given* input, int64_t width, T* output) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += widen(input[i]) * widen(input[i]);
    const float scale = 1.0f / std::sqrt(squares / width + norm.epsilon);
    if (norm.rounds) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) narrow(norm.weighs(i) * rounded<T>(widen(input[i]) * scale), output + i);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) narrow(widen(input[i]) * scale * norm.weighs(i), output + i);
    }
}

// Applies a norm of either kind, or copies the input where there is none.
template <typename T>
void normalize_if(const Norm<T>& norm, const T* input, int64_t width, T* output) {
    if (norm && norm.centers)
        center_and_normalize(norm, input, width, output);
    else if (norm)
        normalize(norm, input, width, output);
    else
        std::memcpy(output, input, width * sizeof(T));
}
