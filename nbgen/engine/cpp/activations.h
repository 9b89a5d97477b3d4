// What a gated feed-forward makes of a gate and what it lets through.

#pragma once

#include "numbers.h"

// `CLAMPED_SWISH` has limits for what comes in, a slope for its gate, and lets one more through (gpt-oss).
enum Activation : int64_t { SILU, GELU_TANH, CLAMPED_SWISH };

constexpr float LIMIT = 7.0f, SLOPE = 1.702f;

template <typename T, typename Activate>
void gate(T* gates, const T* ups, int64_t begin, int64_t end, const Activate& activate) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++) narrow(activate(widen(gates[i]), widen(ups[i])), gates + i);
}

// In the place of the gates, of which those from `begin` to `end` are.
template <typename T>
void gate(Activation activation, T* gates, const T* ups, int64_t begin, int64_t end) {
    if (activation == SILU)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(silu(x)) * up; });
    else if (activation == GELU_TANH)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(gelu_tanh(x)) * up; });
    else
        gate(gates, ups, begin, end, [](float x, float up) {
            const float open = std::min(x, LIMIT), through = std::min(std::max(up, -LIMIT), LIMIT);
            const float share = rounded<T>(logistic(rounded<T>(open * SLOPE)));
            return rounded<T>(open * share) * rounded<T>(through + 1.0f);
        });
}
