// Products of a few queries with a block's keys and values where they lie in the cache. To pack these first would take longer than
// the products do.
//
// Sums run in the order of `packed.h`, to the bit.

#pragma once

#include "attention_parts.h"
#include "packed.h"
#ifdef __AVX512F__
#include "widened.h"
#endif

// The most queries that are few. More registers than there are would be needed for the sums of more.
constexpr int FEW_QUERIES = 4;

// Where the keys and values of a block lie; the last ones stand for those that are missing in it.
template <typename Kept>
struct Places {
    const Kept *keys[KEYS], *values[KEYS];

    Places(const AttentionLayer& layer, const Block<Kept>& block, const Slots& slots) {
        for (int64_t i = 0; i < KEYS; i++) {
            const int64_t slot = slots.of[std::min(i, slots.count - 1)];
            keys[i] = block.keys + slot * layer.dim;
            values[i] = block.values + slot * layer.value_dim;
        }
    }
};

#ifdef __AVX512F__

// Whether heads of this shape are whole vectors.
template <typename Kept>
bool may_lie(const AttentionLayer& layer) {
    return layer.dim % (VECTOR / sizeof(Kept)) == 0 && layer.value_dim % COLUMNS == 0;
}

// Adds the products of a query's next numbers with those of 16 keys, a word of each key.
template <typename Kept, typename N>
[[gnu::always_inline]] inline Floats add_words(Floats sum, const N* numbers, const Words& words) {
    if constexpr (std::is_same_v<Kept, N>) {
        return add_columns(sum, numbers, reinterpret_cast<const N*>(&words));
    } else {
        sum = sum + numbers[0] * reinterpret_cast<Floats>(words << 16);
        return sum + numbers[1] * reinterpret_cast<Floats>(words & 0xffff0000u);
    }
}

// Scores `count` keys for `R` queries `[R, depth]`, and prefetches those that come `next`. `scores` are `[R, KEYS]`.
template <int R, typename N, typename Kept>
void score_lying(const N* queries, int64_t depth, const Kept* const* keys, int64_t count, const Kept* const* next, float* scores) {
    constexpr int64_t WORD = sizeof(float) / sizeof(Kept), GROUPS = KEYS / LANES;
    Words columns[LANES][GROUPS] = {};
    Floats sums[R][GROUPS] = {};
    for (int64_t d = 0; d < depth; d += LANES * WORD) {
        for (int64_t first = 0; first < count; first += LANES) {
            Words words[LANES];
#pragma GCC unroll 16
            for (int64_t l = 0; l < LANES; l++) words[l] = words_at(keys[first + l] + d), fetch_line(next[first + l] + d);
            transpose(words);
#pragma GCC unroll 16
            for (int64_t j = 0; j < LANES; j++) columns[j][first / LANES] = words[j];
        }
        for (int64_t j = 0; j < LANES; j++)
#pragma GCC unroll 4
            for (int64_t g = 0; g < GROUPS; g++) {
                const Words words = held(columns[j][g]);
#pragma GCC unroll 4
                for (int i = 0; i < R; i++)
                    sums[i][g] = add_words<Kept>(sums[i][g], queries + i * depth + d + j * WORD, words);
            }
    }
#pragma GCC unroll 4
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int64_t g = 0; g < GROUPS; g++) put(sums[i][g], scores + i * KEYS + g * LANES);
}

// A vector of the values of one key, or of a pair of keys that are multiplied together.
[[gnu::always_inline]] inline Floats values_at(const float* const* values, int64_t k, int64_t n, float) {
    return floats_at(values[k] + n);
}

[[gnu::always_inline]] inline Floats values_at(const Bfloat16* const* values, int64_t k, int64_t n, float) {
    return widened(values[k] + n);
}

#ifdef __AVX512BF16__
[[gnu::always_inline]] inline Floats values_at(const Bfloat16* const* values, int64_t k, int64_t n, Bfloat16) {
    const auto wide = [&](int64_t key) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values[key] + n)));
    };
    return reinterpret_cast<Floats>(_mm512_or_si512(wide(k), _mm512_slli_epi32(wide(k + 1), 16)));
}
#endif

// Adds a block's values, times `weights` `[R, KEYS]`, to `sums` `[R, width]`, or overwrites these if `NEW`. Prefetches the `next`.
template <int R, bool NEW, typename N, typename Kept>
void add_lying(const N* weights, const Kept* const* values, const Kept* const* next, float* sums, int64_t width) {
    for (int64_t n = 0; n < width; n += COLUMNS) {
        Floats own[R][4];
#pragma GCC unroll 4
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) own[i][j] = NEW ? Floats{} : floats_at(sums + i * width + n + j * LANES);
        for (int64_t k = 0; k < KEYS; k += DEPTH<N>) {
#pragma GCC unroll 2
            for (int64_t i = k; i < k + DEPTH<N>; i++)
#pragma GCC unroll 4
                for (int64_t at = 0; at < COLUMNS; at += VECTOR / sizeof(Kept)) fetch_line(next[i] + n + at);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const Floats column = held(values_at(values, k, n + j * LANES, N{}));
#pragma GCC unroll 4
                for (int i = 0; i < R; i++)
                    own[i][j] = add_columns(own[i][j], weights + i * KEYS + k, reinterpret_cast<const N*>(&column));
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) put(own[i][j], sums + i * width + n + j * LANES);
    }
}

#else

template <typename Kept>
bool may_lie(const AttentionLayer&) { return false; }

template <int R, typename N, typename Kept>
void score_lying(const N*, int64_t, const Kept* const*, int64_t, const Kept* const*, float*) {}

template <int R, bool NEW, typename N, typename Kept>
void add_lying(const N*, const Kept* const*, const Kept* const*, float*, int64_t) {}

#endif

// Calls `use` with the number of queries, up to `FEW_QUERIES`, as a constant.
template <int R = FEW_QUERIES, typename Use>
void with_few(int64_t count, const Use& use) {
    if constexpr (R > 1)
        if (count < R) return with_few<R - 1>(count, use);
    use(std::integral_constant<int, R>());
}
