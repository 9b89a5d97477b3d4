// Weights of 4 bits, which are -8 to 7 steps from the middle of their group.

#pragma once

#include <type_traits>

#include "vectors.h"

// Of each `GROUP` inputs the first half lies in the low halves of its bytes, the second in the high ones.
struct Nibbles {
    uint8_t two;
};
constexpr int64_t GROUP = 32;

// Eight less than each of `LANES` bytes from the `part`-th `LANES` on.
inline Floats eight_less(__m128i bytes, int part) {
#ifdef __AVX512F__
    (void)part;
    const __m512i less = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(8));
    return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(less));
#else
    const __m256i wide = _mm256_cvtepu8_epi32(part ? _mm_srli_si128(bytes, 8) : bytes);
    return reinterpret_cast<Floats>(_mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(8))));
#endif
}

inline __m128i low_halves(const Nibbles* group) {
    return _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group)), _mm_set1_epi8(15));
}

inline __m128i high_halves(const Nibbles* group) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group));
    return _mm_and_si128(_mm_srli_epi16(all, 4), _mm_set1_epi8(15));
}

// A group's products with the inputs `a`, of weights of -8 to 7; and the sum of these inputs.
struct FloatGroup {
    static constexpr int PARTS = GROUP / LANES;
    Floats parts[PARTS];

    explicit FloatGroup(const Nibbles* group) {
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++)
            parts[p] = eight_less(p < PARTS / 2 ? low_halves(group) : high_halves(group), p % (PARTS / 2));
    }

    Floats times(const float* a) const {
        Floats sum = {};
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) sum += parts[p] * *reinterpret_cast<const Floats*>(a + p * LANES);
        return sum;
    }

    static Floats total(const float* a) {
        Floats sum = {};
#pragma GCC unroll 4
        for (int p = 0; p < PARTS; p++) sum += *reinterpret_cast<const Floats*>(a + p * LANES);
        return sum;
    }
};

#ifdef __AVX512BF16__
struct Bfloat16Group {
    __m512bh all;

    // A table of -8 to 7, twice, is looked up by the low bits of 16: shifted first for those of the second half.
    explicit Bfloat16Group(const Nibbles* group) {
        alignas(64) static constexpr uint16_t NUMBERS[32] = {
            0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,  //
            0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,  //
            0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,  //
            0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
        const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group)));
        const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
        const __m512i halves = _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes), shifts);
        all = reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(halves, _mm512_load_si512(NUMBERS)));
    }

    Floats times(const Bfloat16* a) const {
        return reinterpret_cast<Floats>(
            _mm512_dpbf16_ps(_mm512_setzero_ps(), reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)), all));
    }

    static Floats total(const Bfloat16* a) {
        const __m512i ones = _mm512_set1_epi16(0x3f80);
        return reinterpret_cast<Floats>(_mm512_dpbf16_ps(_mm512_setzero_ps(),
                                                         reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)),
                                                         reinterpret_cast<__m512bh>(ones)));
    }
};

template <typename T>
using GroupOf = std::conditional_t<std::is_same_v<T, float>, FloatGroup, Bfloat16Group>;
#else
template <typename T>
using GroupOf = FloatGroup;
#endif

// A group's step and middle, side by side, in all lanes.
struct StepAndMiddle {
    Floats step, middle;

    explicit StepAndMiddle(const float* two) : step(Floats{} + two[0]), middle(Floats{} + two[1]) {}

    explicit StepAndMiddle(const Bfloat16* two) {
        uint32_t both;
        std::memcpy(&both, two, sizeof both);
        const Words all = Words{} + both;
        step = reinterpret_cast<Floats>(all << 16), middle = reinterpret_cast<Floats>(all & 0xffff0000u);
    }
};
