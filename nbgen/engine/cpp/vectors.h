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
constexpr int ROWS = 6;         // of a tile: its sums, a column of weights and a row fill the 32 registers
#elif defined(__AVX2__)
constexpr int64_t VECTOR = 32;
constexpr int ROWS = 3;
#else
constexpr int64_t VECTOR = 16;
constexpr int ROWS = 6;
#endif
constexpr int64_t LANES = VECTOR / sizeof(float);

typedef float Floats __attribute__((vector_size(VECTOR), aligned(4)));
typedef float Four __attribute__((vector_size(16), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(VECTOR), aligned(4)));

inline Floats floats_at(const float* from) { return *reinterpret_cast<const Floats*>(from); }

// One number in every lane. To take nothing away leaves it as it is; to add nothing would make 0 of -0, which costs an addition.
inline Floats all_of(float number) { return number - Floats{}; }

// A vector that is read once: where there are registers for it, compilers still read it anew for each use, twice as long where it
// lies across two lines.
template <typename V>
[[gnu::always_inline]] inline V held(V vector) {
#ifdef __AVX512F__
    asm("" : "+v"(vector));
#endif
    return vector;
}

// What is needed later comes into the second-level cache: of lines on their way to the first few can be waited for, and they
// push out what is needed now.
[[gnu::always_inline]] inline void fetch_line(const void* from) { __builtin_prefetch(from, 0, 2); }
