// Types of numbers as tensors store them, and functions of float, which they are computed as.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct Bfloat16 {
    uint16_t bits;
};

struct Float16 {
    uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(Bfloat16 value) {
    uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline void narrow(float value, float* to) { *to = value; }

// To the nearest, ties to even.
inline void narrow(float value, Bfloat16* to) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    to->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Copies numbers to the same or another type.
template <typename From, typename To>
inline void convert_all(const From* from, int64_t count, To* to) {
    if constexpr (std::is_same_v<From, To>)
        std::copy_n(from, count, to);
    else
#pragma omp simd
        for (int64_t i = 0; i < count; i++) narrow(widen(from[i]), to + i);
}

// A number as it is read again after being stored as a T.
template <typename T>
inline float rounded(float value) {
    T stored;
    narrow(value, &stored);
    return widen(stored);
}

// exp of x <= 0 to 2e-7, without a call that keeps loops from being vectorised: 2^n times the series of 2^f, |f| <= 1/2.
inline float exponential(float x) {
    float power = std::max(x * 1.44269504f, -126.0f);
    float whole = std::nearbyint(power), f = power - whole;
    float series = 1.33335581e-3f + f * 1.54035304e-4f;
    series = 5.55041087e-2f + f * (9.61812911e-3f + f * series);
    series = 1.0f + f * (6.93147181e-1f + f * (2.40226507e-1f + f * series));
    uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return series * scale;
}

// The same minus 1. Near 0 it is a series: the difference of two numbers near 1 would keep few digits.
inline float exponential_less_one(float x) {
    float series = 1.0f / 24 + x * (1.0f / 120 + x * (1.0f / 720));
    series = x * (1.0f + x * (0.5f + x * (1.0f / 6 + x * series)));
    return x > -0.25f ? series : exponential(x) - 1.0f;
}

inline float logistic(float x) {
    float power = exponential(-std::abs(x));
    return (x < 0 ? power : 1.0f) / (1.0f + power);
}

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// x times its logistic (Elfwing et al. 2017).
inline float silu(float x) {
    float power = exponential(-std::abs(x));
    return x * (x < 0 ? power : 1.0f) / (1.0f + power);
}

// x times the normal distribution's share below it, approximated with a hyperbolic tangent (Hendrycks and Gimpel 2016). As half of
// (1+tanh(y)) is the logistic of 2y, this takes one exponential.
inline float gelu_tanh(float x) {
    const float twice = 1.59576912f * (x + 0.044715f * x * x * x);
    const float power = exponential(-std::abs(twice));
    return x * (twice < 0 ? power : 1.0f) / (1.0f + power);
}

// The same to seven digits, with the share above a positive number by Abramowitz and Stegun 1964, 7.1.26.
inline float gelu(float x) {
    const float z = std::abs(x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    const float series = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float above = 0.5f * series * exponential(-z * z);
    return x * (x < 0 ? above : 1.0f - above);
}

// The hyperbolic tangent. Near 0 it is a series: the difference of two numbers near 1 would keep few digits.
inline float tangent(float x) {
    const float square = x * x, power = exponential(-2.0f * std::abs(x));
    const float series = x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 - square * (17.0f / 315))));
    return square < 0.0625f ? series : std::copysign((1.0f - power) / (1.0f + power), x);
}

// The mean of numbers, and their variance around it.
struct Moments {
    float mean, variance;
};

template <typename T>
inline Moments moments(const T* numbers, int64_t width) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += widen(numbers[i]);
    const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += (widen(numbers[i]) - mean) * (widen(numbers[i]) - mean);
    return {mean, squares / width};
}
