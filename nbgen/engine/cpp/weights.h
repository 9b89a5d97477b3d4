// Reads the weights of one output, of any kind, a vector of numbers at a time: the same numbers wherever they are read.

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

// The 16 levels that the weights of a group, of 4 bits each, may have: equal steps around a middle, or any numbers times a scale. A
// group has `BYTES` of parameters, `at` an address. Where a register holds 16 levels, `all` gives them, else `of` those asked for.

#ifdef __AVX512F__

constexpr Floats COUNTS = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

template <typename T>
inline Floats steps_around(const T* own) {
    return COUNTS * all_of(widen(own[0])) + all_of(widen(own[1]));
}

#ifdef __AVX512BF16__
// Each lane multiplies a pair by a pair: a count by the step, and 1 by the middle.
inline Floats steps_around(const Bfloat16* own) {
    int32_t pair;
    std::memcpy(&pair, own, sizeof pair);
    const __m512i counts = _mm512_srli_epi32(reinterpret_cast<__m512i>(COUNTS), 16);
    const __m512i ones = _mm512_set1_epi32(0x3f800000);
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(_mm512_setzero_ps(),
                                                     reinterpret_cast<__m512bh>(_mm512_or_si512(counts, ones)),
                                                     reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair))));
}
#endif

#endif

template <typename T>
struct Steps {
    static constexpr int64_t BYTES = 2 * sizeof(T);
    const T* first;

    Steps(const Linear<T>& linear, int64_t output) : first(linear.steps + output * linear.inputs / GROUP * 2) {}

    const void* at(int64_t group) const { return first + group * 2; }

#ifdef __AVX512F__
    Floats all(int64_t group) const { return steps_around(first + group * 2); }
#else
    template <typename Places>
    Floats of(Places places, int64_t group) const {
        const T* own = first + group * 2;
        return (whole(places) - all_of(8.0f)) * all_of(widen(own[0])) + all_of(widen(own[1]));
    }

  private:
#ifdef __AVX2__
    static Floats whole(__m256i places) { return reinterpret_cast<Floats>(_mm256_cvtepi32_ps(places)); }
#else
    static Floats whole(uint32x4_t places) { return reinterpret_cast<Floats>(vcvtq_f32_u32(places)); }
#endif
#endif
};

// Numbers of a sign, two bits of exponent and one of mantissa, times 2 to the power of their group's byte less 127 (OCP
// Microscaling Formats 1.0: MXFP4).
template <typename T>
struct Powers {
    static constexpr int64_t BYTES = 1;
    const uint8_t* first;

    Powers(const Linear<T>& linear, int64_t output) : first(linear.exponents + output * linear.inputs / GROUP) {}

    const void* at(int64_t group) const { return first + group; }

#ifdef __AVX512F__
    Floats all(int64_t group) const {
        constexpr Floats NUMBERS = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        return NUMBERS * all_of(power(group));
    }
#elif defined(__AVX2__)
    Floats of(__m256i places, int64_t group) const {
        const __m256 numbers = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), places);
        const __m256i signs = _mm256_slli_epi32(_mm256_srli_epi32(places, 3), 31);
        return reinterpret_cast<Floats>(_mm256_xor_ps(numbers, _mm256_castsi256_ps(signs))) * all_of(power(group));
    }
#else
    Floats of(uint32x4_t places, int64_t group) const {
        static constexpr float NUMBERS[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        return Floats{NUMBERS[places[0]], NUMBERS[places[1]], NUMBERS[places[2]], NUMBERS[places[3]]} * all_of(power(group));
    }
#endif

  private:
    float power(int64_t group) const {
        const uint32_t bits = first[group] ? static_cast<uint32_t>(first[group]) << 23 : 0x00400000;
        float made;
        std::memcpy(&made, &bits, sizeof made);
        return made;
    }
};

// Any 16 numbers, times a factor that two groups share (NF4: QLoRA, Dettmers et al. 2023).
template <typename T>
struct Scaled {
    static constexpr int64_t BYTES = sizeof(float) / 2;
    const float* numbers;
    const float* first;

    Scaled(const Linear<T>& linear, int64_t output)
        : numbers(linear.numbers), first(linear.factors + output * linear.inputs / GROUP / 2) {}

    const void* at(int64_t group) const { return first + group / 2; }

#ifdef __AVX512F__
    Floats all(int64_t group) const { return loaded(numbers) * all_of(first[group / 2]); }
#elif defined(__AVX2__)
    Floats of(__m256i places, int64_t group) const {
        const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers), places);
        const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers + 8), places);
        const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
        return reinterpret_cast<Floats>(_mm256_blendv_ps(low, high, is_high)) * all_of(first[group / 2]);
    }
#else
    Floats of(uint32x4_t places, int64_t group) const {
        const Floats found = {numbers[places[0]], numbers[places[1]], numbers[places[2]], numbers[places[3]]};
        return found * all_of(first[group / 2]);
    }
#endif
};

// Weights of 4 bits, each the index of one of its group's `Levels`, which is rounded to T. A group's weights `i`, `i + 8`, `i + 16`
// and `i + 24` share the word `i` of its eight.
template <typename T, template <typename> typename Levels>
struct Nibbles {
    static constexpr int BITS = 4;
    const uint16_t* first;
    Levels<T> levels;

    Nibbles(const Linear<T>& linear, int64_t output)
        : first(reinterpret_cast<const uint16_t*>(linear.integers) + output * linear.inputs / 4), levels(linear, output) {}

    const char* bytes(int64_t k) const { return reinterpret_cast<const char*>(first + k / 4); }

    Numbers<T> read(int64_t k, int64_t part) const {
        const int64_t group = group_of<T>(k, part);
        [[maybe_unused]] const int from = part * STEP<T> % GROUP / 8 * 4;  // bits before its first weight
        const uint16_t* words_of_group = first + group * GROUP / 4;
#ifdef __AVX2__
        const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(words_of_group));
#endif
#ifdef __AVX512F__
        const __m512 all = reinterpret_cast<__m512>(levels.all(group));
#ifdef __AVX512BF16__
        if constexpr (std::is_same_v<T, Bfloat16>) {
            const __m512i twice = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(all, all));  // indices have five bits
            constexpr int64_t ONES = 0x0001000100010001;
            const __m512i shifts = _mm512_set_epi64(12 * ONES, 12 * ONES, 8 * ONES, 8 * ONES, 4 * ONES, 4 * ONES, 0, 0);
            const __m512i places = _mm512_srlv_epi16(_mm512_broadcast_i32x4(words), shifts);
            return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(places, twice));
        } else
#endif
        {
            const __m512i wide = _mm512_cvtepu16_epi32(_mm256_broadcastsi128_si256(words));
            const __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi32(from), _mm256_set1_epi32(from + 4), 1);
            const __m512i places = _mm512_srlv_epi32(wide, shifts);  // of which four bits count
            return reinterpret_cast<Floats>(_mm512_permutexvar_ps(places, all));
        }
#elif defined(__AVX2__)
        const __m256i shifted = _mm256_srli_epi32(_mm256_cvtepu16_epi32(words), from);
        return levels.of(_mm256_and_si256(shifted, _mm256_set1_epi32(15)), group);
#else
        const uint32x4_t words = vmovl_u16(vld1_u16(words_of_group + part * STEP<T> % 8));
        return levels.of(vandq_u32(vshlq_u32(words, vdupq_n_s32(-from)), vdupq_n_u32(15)), group);
#endif
    }
};

template <typename Kind>
constexpr bool IS_PLAIN = false;
template <typename T>
constexpr bool IS_PLAIN<Plain<T>> = true;
