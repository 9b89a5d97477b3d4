// Activations of a feed-forward: of a gate and the product that it lets through, or of one product alone.

#pragma once

#include "numbers.h"

// `CLAMPED_SWISH` (gpt-oss) clamps its inputs to `LIMIT`, has a `SLOPE` in its gate, and adds one to what the gate lets through.
enum Activation : int64_t { SILU, GELU_TANH, CLAMPED_SWISH, GELU, RELU, RELU_SQUARED, XIELU };

// A layer's learned parameters of xIELU (Huang and Schlag 2024): a parabola above 0, an exponential below, and a line in both. For
// the exponential, inputs above the `edge` count as the `edge`.
struct Xielu {
    float above, below, line, edge;
};

template <typename T>
float xielu(const Xielu& by, float x) {
    const float power = rounded<T>(exponential_less_one(std::min(x, by.edge)));
    const float above = rounded<T>(rounded<T>(by.above * x) * x), below = rounded<T>(rounded<T>(power - x) * by.below);
    return (x > 0 ? above : below) + rounded<T>(by.line * x);
}

constexpr float LIMIT = 7.0f, SLOPE = 1.702f;

template <typename T, typename Activate>
void gate(T* gates, const T* ups, int64_t begin, int64_t end, const Activate& activate) {
#pragma omp simd
    for (int64_t i = begin; i < end; i++) narrow(activate(widen(gates[i]), ups ? widen(ups[i]) : 1.0f), gates + i);
}

// Activates the gates `begin` to `end` in place, and multiplies them by `ups` unless that is null.
template <typename T>
void gate(Activation activation, T* gates, const T* ups, int64_t begin, int64_t end, const Xielu& by = {}) {
    if (activation == SILU)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(silu(x)) * up; });
    else if (activation == GELU_TANH)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(gelu_tanh(x)) * up; });
    else if (activation == GELU)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(gelu(x)) * up; });
    else if (activation == RELU)
        gate(gates, ups, begin, end, [](float x, float up) { return std::max(x, 0.0f) * up; });
    else if (activation == RELU_SQUARED)
        gate(gates, ups, begin, end, [](float x, float up) { return rounded<T>(std::max(x, 0.0f) * std::max(x, 0.0f)) * up; });
    else if (activation == XIELU)
        gate(gates, ups, begin, end, [&](float x, float up) { return rounded<T>(xielu<T>(by, x)) * up; });
    else
        gate(gates, ups, begin, end, [](float x, float up) {
            const float open = std::min(x, LIMIT), through = std::min(std::max(up, -LIMIT), LIMIT);
            const float share = rounded<T>(logistic(rounded<T>(open * SLOPE)));
            return rounded<T>(open * share) * rounded<T>(through + 1.0f);
        });
}

// Replaces each number by how far it exceeds the row's mean plus so many standard `deviations`, and by 0 if it does not.
template <typename T>
void thin(float deviations, T* numbers, int64_t width) {
    const Moments own = moments(numbers, width);
    const float least = rounded<T>(own.mean + std::sqrt(own.variance) * rounded<T>(deviations));
#pragma omp simd
    for (int64_t i = 0; i < width; i++) narrow(std::max(widen(numbers[i]) - least, 0.0f), numbers + i);
}
