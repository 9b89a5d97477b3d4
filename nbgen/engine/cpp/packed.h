// Products of rows with a packed operand: each number of a row is multiplied by a vector of columns.
//
// A column's sum runs over the depth in order, whatever rows and columns are computed beside it. Bfloat16 is multiplied directly
// where the processor can, two numbers of the depth in a lane, and as float elsewhere.

#pragma once

#include <type_traits>
#include <utility>

#include "vectors.h"

#ifdef __AVX512BF16__
template <typename T>
using Operand = T;
#else
template <typename T>
using Operand = float;
#endif

template <typename N>
constexpr int64_t DEPTH = sizeof(float) / sizeof(N);  // numbers of the depth in a lane
constexpr int64_t COLUMNS = 4 * LANES;

inline int64_t padded(int64_t columns) { return (columns + COLUMNS - 1) / COLUMNS * COLUMNS; }

inline Floats add_columns(Floats sum, const float* number, const float* columns) {
    return sum + *number * *reinterpret_cast<const Floats*>(columns);
}

#ifdef __AVX512BF16__
inline Floats add_columns(Floats sum, const Bfloat16* pair, const Bfloat16* columns) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof bits);
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits)),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(columns))));
}
#endif

// Multiplies `R` rows, `stride` apart, by `packed` `[depth / DEPTH, COLUMNS, DEPTH]`: sets `sums` if `NEW`, else adds to them.
template <int R, bool NEW, typename N>
inline void add_rows(const N* rows, int64_t stride, const N* packed, int64_t depth, float* sums, int64_t width) {
    Floats own[R][4];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) own[i][j] = NEW ? Floats{} : floats_at(sums + i * width + j * LANES);
    for (int64_t k = 0; k < depth; k += DEPTH<N>) {
        const N *numbers = rows + k, *columns = packed + k * COLUMNS;
        if constexpr (REGISTERS == 16) {  // the rows' numbers stay in them: else each row would read the columns anew
            Floats all[R];
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) all[i] = held(all_of(numbers[i * stride]));
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const Floats some = held(floats_at(columns + j * LANES));
#pragma GCC unroll 8
                for (int i = 0; i < R; i++) own[i][j] += all[i] * some;
            }
        } else {
#pragma GCC unroll 8
            for (int i = 0; i < R; i++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    own[i][j] = add_columns(own[i][j], numbers + i * stride, columns + j * LANES * DEPTH<N>);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) *reinterpret_cast<Floats*>(sums + i * width + j * LANES) = own[i][j];
}

// Multiplies `rows` `[count, depth]`, `ROWS` at most, by `packed` `[width / COLUMNS, depth / DEPTH, COLUMNS, DEPTH]`: overwrites
// `sums` `[count, width]` if `NEW`, else adds to them.
template <bool NEW, typename N, int R = ROWS>
void add_packed(const N* rows, int64_t count, const N* packed, int64_t depth, float* sums, int64_t width) {
    if constexpr (R > 1)
        if (count < R) return add_packed<NEW, N, R - 1>(rows, count, packed, depth, sums, width);
    for (int64_t n = 0; n < width; n += COLUMNS) add_rows<R, NEW>(rows, depth, packed + n * depth, depth, sums + n, width);
}

template <typename T>
inline void convert(T number, T* to) { *to = number; }

inline void convert(Bfloat16 number, float* to) { *to = widen(number); }

// Converts `count` floats, a multiple of two vectors' lanes, to the type of an operand.
inline void narrow_all(const float* from, int64_t count, float* to) { std::copy_n(from, count, to); }

#ifdef __AVX512F__
// Converts two vectors.
inline void narrow_two(__m512 left, __m512 right, float* to) {
    _mm512_storeu_ps(to, left);
    _mm512_storeu_ps(to + LANES, right);
}
#endif

#ifdef __AVX512BF16__
inline void narrow_two(__m512 left, __m512 right, Bfloat16* to) {
    const __m512bh two = _mm512_cvtne2ps_pbh(right, left);
    std::memcpy(to, &two, sizeof two);
}

inline void narrow_all(const float* from, int64_t count, Bfloat16* to) {
    for (int64_t i = 0; i < count; i += 2 * LANES)
        narrow_two(_mm512_loadu_ps(from + i), _mm512_loadu_ps(from + i + LANES), to + i);
}
#endif

#ifdef __AVX2__

#ifdef __AVX512F__
typedef __m512i Lanes;
inline Lanes low_words(Lanes a, Lanes b) { return _mm512_unpacklo_epi32(a, b); }
inline Lanes high_words(Lanes a, Lanes b) { return _mm512_unpackhi_epi32(a, b); }
inline Lanes low_pairs(Lanes a, Lanes b) { return _mm512_unpacklo_epi64(a, b); }
inline Lanes high_pairs(Lanes a, Lanes b) { return _mm512_unpackhi_epi64(a, b); }
#else
typedef __m256i Lanes;
inline Lanes low_words(Lanes a, Lanes b) { return _mm256_unpacklo_epi32(a, b); }
inline Lanes high_words(Lanes a, Lanes b) { return _mm256_unpackhi_epi32(a, b); }
inline Lanes low_pairs(Lanes a, Lanes b) { return _mm256_unpacklo_epi64(a, b); }
inline Lanes high_pairs(Lanes a, Lanes b) { return _mm256_unpackhi_epi64(a, b); }
#endif

// Transposes `LANES` vectors of as many lanes: first within 16 bytes of a vector, where a processor moves the most at a time.
inline void transpose(Words (&rows)[LANES]) {
    Lanes pairs[LANES], fours[LANES];
    const auto row = [&](int i) { return reinterpret_cast<Lanes>(rows[i]); };
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = low_words(row(i), row(i + 1));
        pairs[i + 1] = high_words(row(i), row(i + 1));
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = low_pairs(pairs[i + j], pairs[i + j + 2]);
            fours[i + 2 * j + 1] = high_pairs(pairs[i + j], pairs[i + j + 2]);
        }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
#ifdef __AVX512F__
        const __m512i even = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(fours[j], fours[j + 4], 0xdd);
        const __m512i more_even = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0x88);
        const __m512i more_odd = _mm512_shuffle_i32x4(fours[j + 8], fours[j + 12], 0xdd);
        rows[j] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(even, more_even, 0x88));
        rows[j + 4] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(odd, more_odd, 0x88));
        rows[j + 8] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(even, more_even, 0xdd));
        rows[j + 12] = reinterpret_cast<Words>(_mm512_shuffle_i32x4(odd, more_odd, 0xdd));
#else
        rows[j] = reinterpret_cast<Words>(_mm256_permute2x128_si256(fours[j], fours[j + 4], 0x20));
        rows[j + 4] = reinterpret_cast<Words>(_mm256_permute2x128_si256(fours[j], fours[j + 4], 0x31));
#endif
    }
}

#else

template <std::size_t... I>
inline Words interleave(Words a, Words b, int half, std::index_sequence<I...>) {
#if defined(__clang__)
    return half ? __builtin_shufflevector(a, b, ((I % 2 ? LANES : 0) + LANES / 2 + I / 2)...)
                : __builtin_shufflevector(a, b, ((I % 2 ? LANES : 0) + I / 2)...);
#else
    return half ? __builtin_shuffle(a, b, Words{((I % 2 ? LANES : 0) + LANES / 2 + I / 2)...})
                : __builtin_shuffle(a, b, Words{((I % 2 ? LANES : 0) + I / 2)...});
#endif
}

// Transposes `LANES` vectors of as many lanes: each round interleaves vectors that are `LANES / 2` apart.
inline void transpose(Words (&rows)[LANES]) {
    constexpr auto all = std::make_index_sequence<LANES>();
#pragma GCC unroll 4
    for (int round = 1; round < LANES; round *= 2) {
        Words next[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) next[i] = interleave(rows[i / 2], rows[i / 2 + LANES / 2], i % 2, all);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

#endif

// A vector of numbers, converted to the type N of an operand.
template <typename N, typename From>
[[gnu::always_inline]] inline Words operands(const From* from) {
    if constexpr (std::is_same_v<From, N>) {
        return words_at(from);
    } else {
        N own[LANES];
        for (int i = 0; i < LANES; i++) convert(from[i], own + i);
        return words_at(own);
    }
}

// Packs `LANES` columns from `n` on, each `[depth]`, of an operand of this depth.
template <typename From, typename N>
void pack_columns(const From* const* columns, int64_t depth, int64_t n, N* packed) {
    constexpr int64_t PAIR = DEPTH<N>, MANY = LANES * PAIR;
    packed += n / COLUMNS * COLUMNS * depth + n % COLUMNS * PAIR;
    int64_t k = 0;
    for (; k + MANY <= depth; k += MANY) {
        Words words[LANES];
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) words[l] = operands<N>(columns[l] + k);
        transpose(words);
        for (int l = 0; l < LANES; l++) put(words[l], packed + (k + l * PAIR) * COLUMNS);
    }
    for (; k < depth; k += PAIR)
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < PAIR; i++) convert(columns[l][k + i], packed + k * COLUMNS + l * PAIR + i);
}

// Packs the rows `k` to `k + DEPTH`, each `[width]`, of an operand of this depth.
template <typename From, typename N>
void pack_rows(const From* const* rows, int64_t width, int64_t depth, int64_t k, N* packed) {
    constexpr int64_t PAIR = DEPTH<N>;
    for (int64_t begin = 0; begin < width; begin += COLUMNS) {
        N* to = packed + begin * depth + k * COLUMNS;
        const int64_t count = std::min(COLUMNS, width - begin);
        for (int64_t n = 0; n < count; n++)
            for (int64_t i = 0; i < PAIR; i++) convert(rows[i][begin + n], to + n * PAIR + i);
    }
}

#ifdef __AVX512BF16__
// The same for bfloat16 that stays bfloat16: the numbers of two rows become the halves of words.
inline void pack_rows(const Bfloat16* const* rows, int64_t width, int64_t depth, int64_t k, Bfloat16* packed) {
    const auto widened = [&](int row, int64_t n) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[row] + n)));
    };
    for (int64_t n = 0; n < width; n += LANES) {
        Bfloat16* to = packed + n / COLUMNS * COLUMNS * depth + k * COLUMNS + n % COLUMNS * 2;
        if (n + LANES <= width)
            _mm512_storeu_si512(to, _mm512_or_si512(widened(0, n), _mm512_slli_epi32(widened(1, n), 16)));
        else
            for (int64_t i = 0; n + i < width; i++) to[2 * i] = rows[0][n + i], to[2 * i + 1] = rows[1][n + i];
    }
}
#endif
