// A register's worth of numbers, on any processor that the compiler has vectors for.

#pragma once

#include "numbers.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int64_t VECTOR = 64;  // bytes
constexpr int REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int64_t VECTOR = 32;
constexpr int REGISTERS = 16;
#else
constexpr int64_t VECTOR = 16;
constexpr int REGISTERS = 32;
#endif
constexpr int ROWS = REGISTERS == 32 ? 6 : 3;  // of a tile: its sums, a column of weights and a row fill the registers
constexpr int64_t LANES = VECTOR / sizeof(float);

typedef float Floats __attribute__((vector_size(VECTOR), aligned(4)));
typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(VECTOR), aligned(4)));

inline Floats floats_at(const float* from) { return *reinterpret_cast<const Floats*>(from); }

// One number in every lane. Subtracting 0 changes nothing, and costs nothing. Adding 0 would turn -0 into 0, and cost an addition.
inline Floats all_of(float number) { return number - Floats{}; }

// Keeps a vector in a register. Compilers would read it anew for each use even with registers to spare, which takes twice as long
// where it lies across two cache lines.
template <typename V>
[[gnu::always_inline]] inline V held(V vector) {
#ifdef __AVX512F__
    asm("" : "+v"(vector));
#elif defined(__AVX2__)
    asm("" : "+x"(vector));
#endif
    return vector;
}

// Reads a vector at any address, and `put` writes one. (Compilers split a copy of 32 bytes, and pass it through other memory.)
[[gnu::always_inline]] inline Words words_at(const void* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return reinterpret_cast<Words>(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
#else
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
#endif
}

template <typename V>
[[gnu::always_inline]] inline void put(V vector, void* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    _mm256_storeu_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(vector));
#else
    std::memcpy(to, &vector, sizeof vector);
#endif
}

constexpr int64_t LINE = 64;  // bytes of a cache line

// Prefetches what is needed later into the second-level cache: only a few lines can be on their way to the first at once, and they
// would push out what is needed now.
[[gnu::always_inline]] inline void fetch_line(const void* from) { __builtin_prefetch(from, 0, 2); }

constexpr int64_t AHEAD = 4 * LINE;  // bytes

// Prefetches weights of as many outputs as are read at `k`, `AHEAD` later; after a row's end, of the outputs that follow. If not
// inlined, this would be a function without effect, whose calls compilers leave out.
template <typename N>
[[gnu::always_inline]] inline void fetch_ahead(const N* weights, int64_t outputs, int64_t inputs, int64_t k) {
    const int64_t coming = k + AHEAD / static_cast<int64_t>(sizeof(N));
    weights += coming < inputs ? coming : outputs * inputs + coming - inputs;
    for (int64_t i = 0; i < outputs; i++, weights += inputs) fetch_line(weights);
}

// The cache that what is needed very soon is prefetched into: the first level if that can have many reads under way. Zen 5 alone
// has both instructions.
#if defined(__AVX512BF16__) && defined(__AVX512VP2INTERSECT__)
constexpr int NEAR = 3;  // a tenth to a quarter faster than into the second; on Zen 4 it was slower
#else
constexpr int NEAR = 2;
#endif

// Prefetches what was prefetched from afar and is needed very soon: a processor drops prefetches while too many are under way.
[[gnu::always_inline]] inline void fetch_soon([[maybe_unused]] const void* from) {
    if constexpr (NEAR == 3) __builtin_prefetch(from, 0, NEAR);
}
