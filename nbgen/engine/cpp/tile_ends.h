// What makes outputs of the sums of tiles. Does not know how these came about.

#pragma once

#include "linear.h"
#include "tiles.h"

#ifdef TILES

// What makes outputs of the sums of 16 adjacent ones, or of fewer: their scales and biases, if there are any.
struct Ends {
    bool scaled = false, biased = false;
    __m512 scale = {}, bias = {};

    Ends() = default;

    // Those of the `count` outputs from `n` on.
    Ends(const Linear<Bfloat16>& layer, int64_t n, int64_t count) : scaled(layer.scales != nullptr), biased(layer.bias != nullptr) {
        const auto some = static_cast<__mmask16>((1 << count) - 1);
        if (scaled) scale = _mm512_maskz_loadu_ps(some, layer.scales + n);
        if (biased) {
            const __m256i halves = _mm256_maskz_loadu_epi16(some, layer.bias + n);
            bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
        }
    }

    __m512 operator()(__m512 sums) const {
        if (scaled) sums = _mm512_mul_ps(sums, scale);
        return biased ? _mm512_add_ps(sums, bias) : sums;
    }
};

// Makes a row's outputs from `n` on, 16 at most, of their sums.
inline void finish_row(const Linear<Bfloat16>& layer, __m512 sums, int64_t n, int64_t count, Bfloat16* output) {
    const __m256bh narrow = _mm512_cvtneps_pbh(Ends(layer, n, count)(sums));
    _mm256_mask_storeu_epi16(output + n, static_cast<__mmask16>((1 << count) - 1), reinterpret_cast<__m256i>(narrow));
}

#endif
