// Exponentials of a vector's numbers, and the sums or largest numbers of 16 vectors at once. Needs AVX-512.

#pragma once

#include "vectors.h"

#ifdef __AVX512F__

// As `exponential` of each number.
inline __m512 exponentials(__m512 x) {
    const __m512 power = _mm512_max_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _mm512_set1_ps(-126.0f));
    const __m512 whole = _mm512_roundscale_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(power, whole);
    __m512 series = _mm512_set1_ps(1.54035304e-4f);
    for (const float next : {1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
        series = _mm512_fmadd_ps(f, series, _mm512_set1_ps(next));
    return _mm512_scalef_ps(series, whole);
}

// Joins the lanes of each of 16 vectors into one number: the halves first, then their halves, and so on.
template <typename Join>
inline __m512 fold_rows(const Join& join, const __m512 (&rows)[16]) {
    __m512 fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const auto halved = [&](__m512 a, __m512 b) {
            return join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        };
        const __m512 x = halved(rows[i], rows[i + 4]), y = halved(rows[i + 8], rows[i + 12]);
        fours[i] = join(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    }
    const auto paired = [&](__m512 a, __m512 b) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return join(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    };
    const __m512 x = paired(fours[0], fours[1]), y = paired(fours[2], fours[3]);
    return join(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
}

#endif
