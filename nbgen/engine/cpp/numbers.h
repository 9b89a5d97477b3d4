// Numbers as tensors hold them, and as they are computed with.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

// What is left of a number that was stored as a T.
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

// x times its logistic (Elfwing et al. 2017).
inline float silu(float x) {
    float power = exponential(-std::abs(x));
    return x * (x < 0 ? power : 1.0f) / (1.0f + power);
}
