// Widens numbers of 16 and of 8 bits to vectors of float.

#pragma once

#include "vectors.h"

inline Floats widened(const Bfloat16* from) {
#ifdef __AVX512F__
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return reinterpret_cast<Floats>(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Floats>(_mm256_slli_epi32(wide, 16));
#else
    return reinterpret_cast<Floats>(vshll_n_u16(vld1_u16(&from->bits), 16));
#endif
}

inline Floats widened(const Float16* from) {
#ifdef __AVX512F__
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return reinterpret_cast<Floats>(vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(from))));
#endif
}

inline Floats widened(const int8_t* from) {
#ifdef __AVX512F__
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all)));
#elif defined(__AVX2__)
    return reinterpret_cast<Floats>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(from))));
#else
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return reinterpret_cast<Floats>(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
#endif
}

// A number of a sign, four bits of exponent and three of mantissa (E4M3: Micikevicius et al. 2022).
struct Float8 {
    uint8_t bits;
};

// The numbers divided by 256: these are the float16 numbers with the same bits in the same fields.
inline Floats widened(const Float8* from) {
#ifdef __AVX512F__
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 7);
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_andnot_si256(_mm256_set1_epi16(0x4000), wide)));
#elif defined(__AVX2__)
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadu_si64(from)), 7);
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_andnot_si128(_mm_set1_epi16(0x4000), wide)));
#else
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    const int16x4_t wide = vshl_n_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))), 7);
    return reinterpret_cast<Floats>(vcvt_f32_f16(vreinterpret_f16_s16(vbic_s16(wide, vdup_n_s16(0x4000)))));
#endif
}
