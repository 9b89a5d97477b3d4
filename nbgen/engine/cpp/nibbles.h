// Weights of 4 bits, each the index of one of the 16 levels that its group has.

#pragma once

#include "weights.h"

// What it takes to find one of 16 numbers by its index, besides the numbers. Of a number's bytes all but the last `USED` are zero.
#if defined(__AVX2__) && !defined(__AVX512F__)

// Numbers are found byte by byte: as many bytes as a register has at once, and it costs little to join them.
template <int USED>
class Table {
  public:
    explicit Table(const float* numbers) {
        for (int i = 4 - USED; i < 4; i++) {
            uint8_t own[16];
#pragma GCC unroll 16
            for (int j = 0; j < 16; j++) std::memcpy(own + j, reinterpret_cast<const char*>(numbers + j) + i, 1);
            bytes_[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(own)));
        }
    }

    // The numbers of the weights `8 * part` to `8 * part + 8` of a group.
    Floats at(__m128i words, int64_t part) const {
        // Of four words in each half, the low bytes and then the high ones: once for their low four bits, once for the others.
        const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 0, 2, 4, 6, 1, 3, 5, 7,  //
                                               8, 10, 12, 14, 9, 11, 13, 15, 8, 10, 12, 14, 9, 11, 13, 15);
        const __m256i twice = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(words), order);
        const __m256i places = _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4)), _mm256_set1_epi8(15));
        const auto pairs = [&](int i) {
            const __m256i low = _mm256_shuffle_epi8(bytes_[i], places), high = _mm256_shuffle_epi8(bytes_[i + 1], places);
            return part % 2 ? _mm256_unpackhi_epi8(low, high) : _mm256_unpacklo_epi8(low, high);
        };
        const __m256i last = pairs(2), first = USED > 2 ? pairs(0) : _mm256_setzero_si256();
        return reinterpret_cast<Floats>(part < 2 ? _mm256_unpacklo_epi16(first, last) : _mm256_unpackhi_epi16(first, last));
    }

  private:
    __m256i bytes_[4];
};

#else

template <int USED>
struct Table {
    explicit Table(const float*) {}
};

#endif

// The levels of a group: one of 16 `numbers` that all groups share, `scaled` by what the group has for itself, `BYTES` of
// parameters, `at` an address.

// Equal steps around a middle.
template <typename T>
struct Steps {
    static constexpr int64_t BYTES = 2 * sizeof(T);
    static constexpr float numbers[] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const T* first;
    Table<2> table{numbers};

    Steps(const Linear<T>& linear, int64_t output) : first(linear.steps + output * linear.inputs / GROUP * 2) {}

    const T* at(int64_t group) const { return first + group * 2; }

    Floats scaled(Floats counts, int64_t group) const { return counts * all_of(widen(at(group)[0])) + all_of(widen(at(group)[1])); }
};

// Numbers of a sign, two bits of exponent and one of mantissa, times 2 to the power of their group's byte less 127 (OCP
// Microscaling Formats 1.0: MXFP4).
template <typename T>
struct Powers {
    static constexpr int64_t BYTES = 1;
    static constexpr float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t* first;
    Table<2> table{numbers};

    Powers(const Linear<T>& linear, int64_t output) : first(linear.exponents + output * linear.inputs / GROUP) {}

    const uint8_t* at(int64_t group) const { return first + group; }

    Floats scaled(Floats own, int64_t group) const {
        const uint32_t bits = *at(group) ? static_cast<uint32_t>(*at(group)) << 23 : 0x00400000;
        float power;
        std::memcpy(&power, &bits, sizeof power);
        return own * all_of(power);
    }
};

// Any 16 numbers, times a factor that two groups share (NF4: QLoRA, Dettmers et al. 2023).
template <typename T>
struct Scaled {
    static constexpr int64_t BYTES = sizeof(float) / 2;
    const float* numbers;
    const float* first;
    Table<4> table{numbers};

    Scaled(const Linear<T>& linear, int64_t output)
        : numbers(linear.numbers), first(linear.factors + output * linear.inputs / GROUP / 2) {}

    const float* at(int64_t group) const { return first + group / 2; }

    Floats scaled(Floats own, int64_t group) const { return own * all_of(*at(group)); }
};

#if defined(__AVX512F__)

// All levels of a group: a register holds them.
template <typename Levels>
inline Floats all_levels(const Levels& levels, int64_t group) {
    return levels.scaled(loaded(levels.numbers), group);
}

#ifdef __AVX512BF16__
// Each lane multiplies a pair by a pair: a count by the step, and 1 by the middle.
inline Floats all_levels(const Steps<Bfloat16>& levels, int64_t group) {
    int32_t pair;
    std::memcpy(&pair, levels.at(group), sizeof pair);
    const __m512i counts = _mm512_srli_epi32(reinterpret_cast<__m512i>(loaded(levels.numbers)), 16);
    const __m512i ones = _mm512_set1_epi32(0x3f800000);
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(_mm512_setzero_ps(),
                                                     reinterpret_cast<__m512bh>(_mm512_or_si512(counts, ones)),
                                                     reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair))));
}
#endif

#elif !defined(__AVX2__)

template <typename Levels>
inline Floats found(const Levels& levels, uint32x4_t places) {
    return {levels.numbers[places[0]], levels.numbers[places[1]], levels.numbers[places[2]], levels.numbers[places[3]]};
}

template <typename T>
inline Floats found(const Steps<T>&, uint32x4_t places) {
    return reinterpret_cast<Floats>(vcvtq_f32_u32(places)) - all_of(8.0f);
}

#endif

// Weights of 4 bits, whose levels are rounded to T. A group's weights `i`, `i + 8`, `i + 16` and `i + 24` share the word `i` of its
// eight.
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
        const __m512 all = reinterpret_cast<__m512>(all_levels(levels, group));
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
        return levels.scaled(levels.table.at(words, from / 4), group);
#else
        const uint32x4_t words = vmovl_u16(vld1_u16(words_of_group + part * STEP<T> % 8));
        const uint32x4_t places = vandq_u32(vshlq_u32(words, vdupq_n_s32(-from)), vdupq_n_u32(15));
        return levels.scaled(found(levels, places), group);
#endif
    }
};
