// Rows by a weight `[outputs, inputs]` as it lies in memory, tile by tile.
//
// A result is the same sum in the same order whatever tile it is computed in. A tile's sums stay in registers; the weight is
// read once for all rows of a step, and what comes next of it is fetched meanwhile.

#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "linear.h"
#include "nibbles.h"

constexpr int FEWEST = 4;           // outputs of a tile of many rows
constexpr int MOST = 8;             // and of one or two
constexpr int FEW = ROWS + 2;       // rows that read their weights in the order of memory
constexpr int64_t DISTANCE = 8192;  // bytes ahead of their products that these are fetched
constexpr int64_t PANEL = 32;       // outputs whose weights stay in the second-level cache while all rows go by

template <typename T>
constexpr int64_t STEP = VECTOR / sizeof(T);

inline Floats add_product(Floats sum, const float* a, const float* b) {
    return sum + *reinterpret_cast<const Floats*>(a) * *reinterpret_cast<const Floats*>(b);
}

inline Floats add_product(Floats sum, const Bfloat16* a, const Bfloat16* b) {
#ifdef __AVX512BF16__
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(b))));
#else
    Words x = *reinterpret_cast<const Words*>(a), y = *reinterpret_cast<const Words*>(b);
    sum += reinterpret_cast<Floats>(x << 16) * reinterpret_cast<Floats>(y << 16);
    return sum + reinterpret_cast<Floats>(x & 0xffff0000u) * reinterpret_cast<Floats>(y & 0xffff0000u);
#endif
}

// Integers of 8 bits are exact in either type.
inline Floats add_product(Floats sum, const float* a, const int8_t* b) {
#ifdef __AVX512F__
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b))));
#else
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(b)));
#endif
    return sum + *reinterpret_cast<const Floats*>(a) * reinterpret_cast<Floats>(wide);
}

#ifdef __AVX512BF16__
inline Floats add_product(Floats sum, const Bfloat16* a, const int8_t* b) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(all)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(all, 1)));
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)),
                                                     _mm512_cvtne2ps_pbh(high, low)));
}
#endif

// `R` rows of `input` by the outputs from `n` on of `weights`, one or two after the other: where this is all that is done with
// the weights they come from memory in the order in which they lie there, which is how processors fetch ahead best.
template <int R, typename T>
inline void read_once(const Linear<T>& linear, const T* weights, const T* input, T* output, int64_t n) {
    constexpr int N = R > ROWS ? 2 : 1;  // more rows take longer than their weights: two outputs for each load of an input
    const int64_t inputs = linear.inputs;
    const T* weight = weights + n * inputs;
    Floats sums[R][FEWEST];
#pragma GCC unroll 8
    for (int j = 0; j < FEWEST; j += N, weight += N * inputs) {
        Floats own[R][N] = {};
        for (int64_t k = 0; k < inputs; k += STEP<T>) {
#pragma GCC unroll 8
            for (int a = 0; a < N; a++)
                _mm_prefetch(reinterpret_cast<const char*>(weight + a * inputs + k) + DISTANCE, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++)
#pragma GCC unroll 8
                for (int a = 0; a < N; a++)
                    own[i][a] = add_product(own[i][a], input + i * inputs + k, weight + a * inputs + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int a = 0; a < N; a++) sums[i][j + a] = own[i][a];
    }
    finish(linear, sums, output, n);
}

// The same for the outputs `begin` to `end`.
template <int R, typename T>
void read_all_once(const Linear<T>& linear, const T* weights, const T* input, T* output, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += FEWEST) read_once<R>(linear, weights, input, output, n);
}

// The same for one row, two rows, and so on: functions of their own, whose loops compilers take to be worth their while.
template <typename T, std::size_t... R>
constexpr auto for_few(std::index_sequence<R...>) {
    return std::array{&read_all_once<R + 1, T>...};
}

// What a tile fetches for later meanwhile: of the outputs `ahead` the inputs `from` to `to`.
struct Ahead {
    int64_t outputs, from, to;
};

// A tile's weights: those of its output `j` and its input `k` lie at `k * along + j * across`.
template <typename W>
struct Weights {
    const W* first;
    int64_t along, across;
};

// To the sums of `R` rows by `N` outputs what their inputs `begin` to `end` add. Of `next` it fetches.
template <int R, int N, typename T, typename W>
[[gnu::always_inline]] inline void add_products(Floats (&sums)[R][N], const T* input, int64_t inputs, Weights<W> weights,
                                                int64_t begin, int64_t end, const W* next, Ahead ahead) {
    for (int64_t k = begin; k < end; k += STEP<T>) {
        if (k >= ahead.from && k < ahead.to)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++) _mm_prefetch(reinterpret_cast<const char*>(next + j * inputs + k), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                sums[i][j] = add_product(sums[i][j], input + i * inputs + k,
                                         weights.first + k * weights.along + j * weights.across);
    }
}

// `R` rows of `input` by `N` outputs from `n` on of `weights`.
template <int R, int N, typename T, typename W>
inline void tile(const Linear<T>& linear, const W* weights, const T* input, T* output, int64_t n, Ahead ahead) {
    const W* weight = weights + n * linear.inputs;
    Floats sums[R][N] = {};
    add_products(sums, input, linear.inputs, Weights<W>{weight, 1, linear.inputs}, 0, linear.inputs,
                 weight + ahead.outputs * linear.inputs, ahead);
    finish(linear, sums, output, n);
}

template <int R, int N, typename T>
inline void tile(const Linear<T>& linear, const Nibbles* weights, const T* input, T* output, int64_t n, Ahead ahead) {
    const int64_t bytes = linear.inputs / 2, groups = linear.inputs / GROUP;
    const Nibbles* weight = weights + n * bytes;
    const T* steps = linear.steps + 2 * n * groups;
    Floats sums[R][N] = {};
    for (int64_t g = 0; g < groups; g++) {
        if (g * GROUP >= ahead.from && g * GROUP < ahead.to)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                _mm_prefetch(reinterpret_cast<const char*>(weight + (ahead.outputs + j) * bytes + g * GROUP / 2), _MM_HINT_T1);
        Floats totals[R];
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) totals[i] = GroupOf<T>::total(input + i * linear.inputs + g * GROUP);
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            const GroupOf<T> group(weight + j * bytes + g * GROUP / 2);
            const StepAndMiddle of(steps + 2 * (j * groups + g));
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                const Floats product = group.times(input + i * linear.inputs + g * GROUP);
                sums[i][j] = sums[i][j] + product * of.step + totals[i] * of.middle;
            }
        }
    }
    finish(linear, sums, output, n);
}

// `R` rows from `m` on of all `rows`, by the outputs `begin` to `end`: each row fetches its part of the next panel.
template <int R, int N, typename T, typename W>
inline void strip(const Linear<T>& linear, const W* weights, int64_t rows, int64_t m, const T* input, T* output,
                  int64_t begin, int64_t end) {
    const Ahead ahead{rows == 1 ? N : PANEL, m * linear.inputs / rows, (m + R) * linear.inputs / rows};
    input += m * linear.inputs;
    output += m * linear.outputs;
    int64_t n = begin;
    for (; n + N <= end; n += N) tile<R, N>(linear, weights, input, output, n, ahead);
    for (; n < end; n += FEWEST) tile<R, FEWEST>(linear, weights, input, output, n, ahead);
}

// The last rows that are better done in strips of four: two of these rather than one of six and one of two.
inline int64_t in_fours(int64_t rows) { return ROWS == 6 && rows % ROWS == 2 && rows > 2 ? 8 : 0; }

// Strips of one row, two rows, and so on.
template <typename T, typename W, std::size_t... R>
constexpr auto strips_of(std::index_sequence<R...>) {
    return std::array{&strip<R + 1, (R < 2 ? MOST : FEWEST), T, W>...};
}

// `input` `[rows, inputs]` to the outputs `begin` to `end`, a panel at most, of `output` `[rows, outputs]`.
template <typename T, typename W>
void multiply_by(const W* weights, const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin,
                 int64_t end) {
    if constexpr (std::is_same_v<W, T>)
        if (0 < rows && rows <= FEW) {
            static constexpr auto read = for_few<T>(std::make_index_sequence<FEW>());
            return read[rows - 1](linear, weights, input, output, begin, end);
        }
    static constexpr auto strips = strips_of<T, W>(std::make_index_sequence<ROWS>());
    const int64_t others = rows - in_fours(rows);
    for (int64_t m = 0, some; m < rows; m += some) {
        some = m < others ? std::min<int64_t>(ROWS, others - m) : 4;
        strips[some - 1](linear, weights, rows, m, input, output, begin, end);
    }
}
