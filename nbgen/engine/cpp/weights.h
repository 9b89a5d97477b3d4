// Reads the weights of one output, of 8 bits or more each, a vector of numbers at a time: the same numbers wherever they are read.

#pragma once

#include <type_traits>

#include "linear.h"
#include "widened.h"

template <typename T>
constexpr int64_t STEP = VECTOR / sizeof(T);

// A vector of numbers: `Numbers<T>`.
template <typename T>
struct VectorOf {
    typedef Floats Numbers;
};
template <>
struct VectorOf<Bfloat16> {
#ifdef __AVX512BF16__
    typedef __m512bh Numbers;
#else
    typedef Words Numbers;
#endif
};
template <typename T>
using Numbers = typename VectorOf<T>::Numbers;

inline Floats loaded(const float* from) { return *reinterpret_cast<const Floats*>(from); }

inline Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }

inline Numbers<Bfloat16> loaded(const Bfloat16* from) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
#else
    return *reinterpret_cast<const Words*>(from);
#endif
}

inline Floats add_product(Floats sum, Numbers<Bfloat16> a, Numbers<Bfloat16> b) {
#ifdef __AVX512BF16__
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), a, b));
#else
    sum += reinterpret_cast<Floats>(a << 16) * reinterpret_cast<Floats>(b << 16);
    return sum + reinterpret_cast<Floats>(a & 0xffff0000u) * reinterpret_cast<Floats>(b & 0xffff0000u);
#endif
}

constexpr int64_t GROUP = 32;  // inputs whose weights of 4 bits have a step and a middle in common

// The group of the vector number `part` from the input `k` on, which is a multiple of `GROUP`.
template <typename T>
constexpr int64_t group_of(int64_t k, int64_t part) {
    return k / GROUP + part * STEP<T> / GROUP;
}

// Each kind keeps one output's weights after another's, of `BITS` bits each, and reads the vector number `part` from the input `k`
// on, which is a multiple of `GROUP`.

template <typename T>
struct Plain {
    static constexpr int BITS = 8 * sizeof(T);
    const T* first;

    Plain(const Linear<T>& linear, int64_t output) : first(linear.weight + output * linear.inputs) {}

    const char* bytes(int64_t k) const { return reinterpret_cast<const char*>(first + k); }

    Numbers<T> read(int64_t k, int64_t part) const { return loaded(first + k + part * STEP<T>); }
};

// Weights of 16 bits for products in float, where they are exact.
template <typename H>
struct Halves {
    static constexpr int BITS = 16;
    const H* first;

    Halves(const Linear<float>& linear, int64_t output) : first(of(linear) + output * linear.inputs) {}

    const char* bytes(int64_t k) const { return reinterpret_cast<const char*>(first + k); }

    Floats read(int64_t k, int64_t part) const { return widened(first + k + part * LANES); }

    void write(int64_t inputs, float* to) const {
        for (int64_t k = 0; k < inputs; k += LANES) *reinterpret_cast<Floats*>(to + k) = read(k, 0);
    }

  private:
    static const H* of(const Linear<float>& linear) {
        if constexpr (std::is_same_v<H, Bfloat16>)
            return linear.bfloat16;
        else
            return linear.float16;
    }
};

// Applies `of` to a vector of numbers of 8 bits, and rounds the results to T.
template <typename T, typename From, typename Made>
inline Numbers<T> made_of(const From* from, const Made& of) {
#ifdef __AVX512BF16__
    if constexpr (std::is_same_v<T, Bfloat16>) {
        const Floats low = of(widened(from)), high = of(widened(from + LANES));
        return _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low));
    } else
#endif
        return of(widened(from));
}

// Integers of 8 bits, which are exact in either type; an output's complete sum is multiplied by its scale.
template <typename T>
struct Integers {
    static constexpr int BITS = 8;
    const int8_t* first;

    Integers(const Linear<T>& linear, int64_t output) : first(linear.integers + output * linear.inputs) {}

    const char* bytes(int64_t k) const { return reinterpret_cast<const char*>(first + k); }

    Numbers<T> read(int64_t k, int64_t part) const {
        return made_of<T>(first + k + part * STEP<T>, [](Floats whole) { return whole; });
    }
};

// Integers, or floats of 8 bits in their place (`From`), times the factor of their groups.
template <typename T, typename From = int8_t>
struct Multiples : Integers<T> {
    const float* factors;
    int64_t shift;

    Multiples(const Linear<T>& linear, int64_t output)
        : Integers<T>(linear, output),
          factors(linear.factors + output * (linear.inputs / GROUP >> linear.shift)),
          shift(linear.shift) {}

    Numbers<T> read(int64_t k, int64_t part) const {
        const Floats factor = all_of(factors[group_of<T>(k, part) >> shift]);
        const auto* from = reinterpret_cast<const From*>(this->first + k + part * STEP<T>);
        return made_of<T>(from, [&](Floats number) { return number * factor; });
    }
};

template <typename Kind>
constexpr bool IS_PLAIN = false;
template <typename T>
constexpr bool IS_PLAIN<Plain<T>> = true;
