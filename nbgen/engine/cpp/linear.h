// A linear layer, and how the sums of products in a vector's lanes become outputs.
//
// A sum is the same to the bit for any width of vectors, and any number of rows computed together.

#pragma once

#include "vectors.h"

// A linear layer; `bias` may be null. Its weights are `weight`; or the same numbers in 16 bits; or `integers` times each output's
// `scales`; or `integers`, or 8-bit floats in their place if `floats`, times `factors` `[outputs, groups >> shift]`, each for
// `1 << shift` groups; or of 4 bits. With `steps` `[outputs, groups, 2]`, a 4-bit weight is so many of its group's steps from the
// group's middle. With `exponents` `[outputs, groups]` it is a number times its group's power of two. With 16 `numbers` it is one
// of these times the factor of two groups. Quantized weights have their inputs in the `order` `[inputs]`, unless that is null.
// Adapters (LoRA, Hu et al. 2021) add their products through `down` `[columns, inputs]` and `up` `[columns, outputs]`, which are
// null where no adapter does.
template <typename T>
struct Linear {
    const T* weight;
    const T* bias;
    const T* down;
    const T* up;
    const Bfloat16* bfloat16;
    const Float16* float16;
    const int8_t* integers;
    const float* scales;
    const T* steps;
    const float* numbers;
    const uint8_t* exponents;
    const float* factors;
    const int32_t* order;
    int64_t inputs, outputs, shift, floats;
};

// A sum over lanes begins with (0 + 2) + (1 + 3) of each four; then the halves of these are added to each other until one is left.
#ifdef __AVX2__

// The first step of four sums: of each four lanes, the four results. (To begin across fours of lanes would take slower shuffles.)
inline Floats begun(Floats a, Floats b, Floats c, Floats d) {
#ifdef __AVX512F__
    const __m512 x = reinterpret_cast<__m512>(a), y = reinterpret_cast<__m512>(b);
    const __m512 z = reinterpret_cast<__m512>(c), w = reinterpret_cast<__m512>(d);
    const __m512d xy = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y)));
    const __m512d zw = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(z, w), _mm512_unpackhi_ps(z, w)));
    const __m512d low = _mm512_unpacklo_pd(xy, zw), high = _mm512_unpackhi_pd(xy, zw);
#else
    const __m256 x = reinterpret_cast<__m256>(a), y = reinterpret_cast<__m256>(b);
    const __m256 z = reinterpret_cast<__m256>(c), w = reinterpret_cast<__m256>(d);
    const __m256d xy = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)));
    const __m256d zw = _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps(z, w), _mm256_unpackhi_ps(z, w)));
    const __m256d low = _mm256_unpacklo_pd(xy, zw), high = _mm256_unpackhi_pd(xy, zw);
#endif
    return reinterpret_cast<Floats>(low) + reinterpret_cast<Floats>(high);
}

inline __m128 sums_of(Floats a, Floats b, Floats c, Floats d) {
    const Floats all = begun(a, b, c, d);
#ifdef __AVX512F__
    const __m512d wide = reinterpret_cast<__m512d>(all);
    const __m256 half = _mm256_add_ps(_mm256_castpd_ps(_mm512_castpd512_pd256(wide)),
                                      _mm256_castpd_ps(_mm512_extractf64x4_pd(wide, 1)));
#else
    const __m256 half = reinterpret_cast<__m256>(all);
#endif
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

inline float first_of(__m128 four) { return _mm_cvtss_f32(four); }

inline __m128 widen_four(const float* from) { return _mm_loadu_ps(from); }

inline __m128 widen_four(const Bfloat16* from) {
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadu_si64(from)), 16));
}

#else

static_assert(LANES == 4);
inline float sum_of(Four v) { return (v[0] + v[2]) + (v[1] + v[3]); }

inline Four sums_of(Four a, Four b, Four c, Four d) { return Four{sum_of(a), sum_of(b), sum_of(c), sum_of(d)}; }

inline float first_of(Four four) { return four[0]; }

template <typename T>
inline Four widen_four(const T* from) {
    return Four{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
}

#endif

#ifdef __AVX512F__

// The sums of four rows, of four outputs each, from the results of `begun` for each row.
inline __m512 rows_of(Floats a, Floats b, Floats c, Floats d) {
    const __m512 x = reinterpret_cast<__m512>(a), y = reinterpret_cast<__m512>(b);
    const __m512 z = reinterpret_cast<__m512>(c), w = reinterpret_cast<__m512>(d);
    const __m512 xy = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    const __m512 zw = _mm512_add_ps(_mm512_shuffle_f32x4(z, w, 0x44), _mm512_shuffle_f32x4(z, w, 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(xy, zw, 0x88), _mm512_shuffle_f32x4(xy, zw, 0xdd));
}

// Stores the first `R` of four rows, `stride` apart.
template <int R>
inline void narrow_rows(__m512 sums, float* to, int64_t stride) {
    _mm_storeu_ps(to, _mm512_castps512_ps128(sums));
    if constexpr (R > 1) _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(sums, 1));
    if constexpr (R > 2) _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
    if constexpr (R > 3) _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
}

template <int R>
inline void narrow_rows(__m512 sums, Bfloat16* to, int64_t stride) {
#ifdef __AVX512BF16__
    const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums));
#else
    const __m512i bits = _mm512_castps_si512(sums);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    const __m256i narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
    const __m128d low = _mm_castsi128_pd(_mm256_castsi256_si128(narrow));
    const __m128d high = _mm_castsi128_pd(_mm256_extracti128_si256(narrow, 1));
    _mm_storel_pd(reinterpret_cast<double*>(to), low);
    if constexpr (R > 1) _mm_storeh_pd(reinterpret_cast<double*>(to + stride), low);
    if constexpr (R > 2) _mm_storel_pd(reinterpret_cast<double*>(to + 2 * stride), high);
    if constexpr (R > 3) _mm_storeh_pd(reinterpret_cast<double*>(to + 3 * stride), high);
}

// Sums up and stores the outputs `J` to `J + 4` of up to four rows of a tile, from `I` on.
template <int I, int J, int R, int N, typename T>
[[gnu::always_inline]] inline void finish_rows(const Linear<T>& linear, const Floats (&sums)[R][N], T* output, int64_t n) {
    constexpr int LAST = R - 1;  // stands for those beyond it
    const auto of = [&](int i) { return begun(sums[i][J], sums[i][J + 1], sums[i][J + 2], sums[i][J + 3]); };
    __m512 made = rows_of(of(I), of(std::min(I + 1, LAST)), of(std::min(I + 2, LAST)), of(std::min(I + 3, LAST)));
    if (linear.scales) made = _mm512_mul_ps(made, _mm512_broadcast_f32x4(_mm_loadu_ps(linear.scales + n + J)));
    if (linear.bias) made = _mm512_add_ps(made, _mm512_broadcast_f32x4(widen_four(linear.bias + n + J)));
    narrow_rows<std::min(4, R - I)>(made, output + I * linear.outputs + n + J, linear.outputs);
}

// Sums up a tile's lanes and stores its outputs, from the row `I` on: four rows at a time, with as many steps as elsewhere one row.
template <int I = 0, int R, int N, typename T>
[[gnu::always_inline]] inline void finish(const Linear<T>& linear, const Floats (&sums)[R][N], T* output, int64_t n) {
    static_assert(N == 4 || (N == 8 && R <= 4));
    finish_rows<I, 0>(linear, sums, output, n);
    if constexpr (N > 4) finish_rows<I, 4>(linear, sums, output, n);
    if constexpr (I + 4 < R) finish<I + 4>(linear, sums, output, n);
}

#else

#ifdef __AVX2__

inline void narrow_four(__m128 four, float* to) { _mm_storeu_ps(to, four); }

// Rounds as `narrow` does.
inline void narrow_four(__m128 four, Bfloat16* to) {
    const __m128i bits = _mm_castps_si128(four), last = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), last);
    _mm_storeu_si64(to, _mm_packus_epi32(_mm_srli_epi32(rounded, 16), _mm_setzero_si128()));
}

#else

template <typename T>
inline void narrow_four(Four four, T* to) {
    for (int i = 0; i < 4; i++) narrow(four[i], to + i);
}

#endif

// Sums up a tile's lanes and stores its outputs.
template <int R, int N, typename T>
[[gnu::always_inline]] inline void finish(const Linear<T>& linear, const Floats (&sums)[R][N], T* output, int64_t n) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < N; j += 4) {
            auto four = sums_of(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
            if (linear.scales) four = four * widen_four(linear.scales + n + j);
            if (linear.bias) four = four + widen_four(linear.bias + n + j);
            narrow_four(four, output + i * linear.outputs + n + j);
        }
}

#endif
