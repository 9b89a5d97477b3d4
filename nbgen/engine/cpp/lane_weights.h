// Quantized weights of 16 outputs at once, one in each lane of a vector: the same numbers that each kind reads for one output.

#pragma once

#include "nibbles.h"
#include "packed.h"
#include "tiles.h"

#ifdef TILES

// So many outputs of a layer from the `first` on. In lanes beyond these, the last one stands for those that are missing.
struct LaneOutputs {
    int64_t first, count;

    int64_t of(int64_t lane) const { return first + std::min(lane, count - 1); }

    // How far after the first output's each lane's numbers lie, if an output has so many.
    __m512i places(int64_t numbers) const {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i own = _mm512_min_epi32(lanes, _mm512_set1_epi32(static_cast<int>(count - 1)));
        return _mm512_mullo_epi32(own, _mm512_set1_epi32(static_cast<int>(numbers)));
    }
};

// Rounds to a bfloat16's bits, ties to even, as conversions do, which would keep vectors from being shuffled meanwhile: beside
// 98,304 times a number's power of two there is no room for more bits. Numbers from 2^110 on are too large for that.
[[gnu::always_inline]] inline __m512 in_bfloat16(__m512 numbers) {
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(numbers), _mm512_set1_epi32(static_cast<int>(0xff800000u)));
    const __m512 powers = _mm512_castsi512_ps(bits), many = _mm512_set1_ps(98304.0f);
    return _mm512_fnmadd_ps(powers, many, _mm512_fmadd_ps(powers, many, numbers));
}

// A cache line of each output's weights, of `BITS` bits each. A vector has the word of the same number of all outputs.
template <int BITS>
struct LaneLines {
    static constexpr int64_t INPUTS = LINE * 8 / BITS;
    const char* first;
    int64_t bytes;  // of an output
    LaneOutputs outputs;
    Words words[LANES];

    LaneLines(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : first(reinterpret_cast<const char*>(linear.integers) + outputs.first * linear.inputs * BITS / 8),
          bytes(linear.inputs * BITS / 8), outputs(outputs) {}

    // Reads the line that begins with the input `k`.
    [[gnu::always_inline]] void read(int64_t k) {
        const int64_t at = k * BITS / 8, left = std::min(LINE, bytes - at);
        fetch_ahead(first, LANES, bytes, at);
#pragma GCC unroll 16
        for (int64_t l = 0; l < LANES; l++) {
            const char* own = first + std::min(l, outputs.count - 1) * bytes + at;
            words[l] = reinterpret_cast<Words>(_mm512_maskz_loadu_epi8(~uint64_t{0} >> (LINE - left), own));
        }
        transpose(words);
    }
};

// Each kind below reads the weights of `INPUTS` inputs at a time, which are multiples of a group, and then has those of a group
// and an input of it. An output's complete sum is multiplied by `SCALE`.

// Any kind, whose weights are read one output after the other.
template <typename Kind>
struct AnyLanes {
    static constexpr int64_t INPUTS = GROUP;
    static constexpr float SCALE = 1;
    const Linear<Bfloat16>& linear;
    LaneOutputs outputs;
    Words pairs[LANES];

    AnyLanes(const Linear<Bfloat16>& linear, const LaneOutputs& outputs) : linear(linear), outputs(outputs) {}

    [[gnu::always_inline]] void read(int64_t k) {
        const int64_t bytes = linear.inputs * Kind::BITS / 8, at = k * Kind::BITS / 8;
        if (at % LINE == 0) fetch_ahead(Kind(linear, outputs.first).bytes(0), LANES, bytes, at);
#pragma GCC unroll 16
        for (int64_t l = 0; l < LANES; l++) pairs[l] = reinterpret_cast<Words>(Kind(linear, outputs.of(l)).read(k, 0));
        transpose(pairs);
    }

    void enter(int64_t) {}

    [[gnu::always_inline]] __m512 weights(int64_t, int i) const {
        return reinterpret_cast<__m512>(i % 2 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16);
    }
};

// Integers of 8 bits, times 2^24.
struct ByteLanes : LaneLines<8> {
    static constexpr float SCALE = 1.0f / (1 << 24);
    using LaneLines::LaneLines;

    void enter(int64_t) {}

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        const __m512i last = _mm512_set4_epi32(0x0c808080, 0x08808080, 0x04808080, 0x00808080);
        const __m512i from = _mm512_add_epi32(last, _mm512_set1_epi32(i % 4 << 24));
        return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(words[group * 8 + i / 4]), from));
    }
};

// The same, times the factor of their groups.
struct MultipleLanes : ByteLanes {
    static constexpr float SCALE = 1;
    const float* factors;
    int64_t shift;
    __m512i places;
    __m512 factor;

    MultipleLanes(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : ByteLanes(linear, outputs), factors(linear.factors + outputs.first * (linear.inputs / GROUP >> linear.shift)),
          shift(linear.shift), places(outputs.places(linear.inputs / GROUP >> linear.shift)) {}

    void enter(int64_t group) {
        factor = _mm512_mul_ps(_mm512_i32gather_ps(places, factors + (group >> shift), 4), _mm512_set1_ps(ByteLanes::SCALE));
    }

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        return in_bfloat16(_mm512_mul_ps(ByteLanes::weights(group, i), factor));
    }
};

// The levels of a group, by the numbers that all groups share.
template <typename Levels>
struct LaneLevels;

template <>
struct LaneLevels<Steps<Bfloat16>> {
    const Bfloat16* first;
    __m512i places;
    __m512 step, middle;

    LaneLevels(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : first(linear.steps + outputs.first * linear.inputs / GROUP * 2), places(outputs.places(linear.inputs / GROUP)) {}

    void enter(int64_t group) {
        const __m512i pairs = _mm512_i32gather_epi32(places, first + group * 2, 4);
        step = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        middle = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }

    [[gnu::always_inline]] __m512 of(__m512 counts) const { return in_bfloat16(_mm512_fmadd_ps(counts, step, middle)); }
};

// Powers too small to be normal count as zero.
template <>
struct LaneLevels<Powers<Bfloat16>> {
    const char* first;  // at a word's beginning
    __m512i places;
    __m512 power;

    LaneLevels(const Linear<Bfloat16>& linear, const LaneOutputs& outputs) {
        const auto at = reinterpret_cast<uintptr_t>(linear.exponents + outputs.first * linear.inputs / GROUP);
        first = reinterpret_cast<const char*>(at - at % 4);
        places = _mm512_add_epi32(outputs.places(linear.inputs / GROUP), _mm512_set1_epi32(static_cast<int>(at % 4)));
    }

    void enter(int64_t group) {
        const __m512i own = _mm512_add_epi32(places, _mm512_set1_epi32(static_cast<int>(group)));
        const __m512i within = _mm512_slli_epi32(_mm512_and_si512(own, _mm512_set1_epi32(3)), 3);
        const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(own, 2), first, 4);
        const __m512i exponents = _mm512_and_si512(_mm512_srlv_epi32(words, within), _mm512_set1_epi32(255));
        power = _mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23));
    }

    [[gnu::always_inline]] __m512 of(__m512 numbers) const { return _mm512_mul_ps(numbers, power); }
};

template <>
struct LaneLevels<Scaled<Bfloat16>> {
    const float* first;
    __m512i places;
    __m512 factor;

    LaneLevels(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : first(linear.factors + outputs.first * linear.inputs / GROUP / 2), places(outputs.places(linear.inputs / GROUP / 2)) {}

    void enter(int64_t group) { factor = _mm512_i32gather_ps(places, first + group / 2, 4); }

    [[gnu::always_inline]] __m512 of(__m512 numbers) const { return in_bfloat16(_mm512_mul_ps(numbers, factor)); }
};

// Weights of 4 bits.
template <typename Levels>
struct NibbleLanes : LaneLines<4> {
    static constexpr float SCALE = 1;
    LaneLevels<Levels> levels;
    __m512 numbers;

    NibbleLanes(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : LaneLines(linear, outputs), levels(linear, outputs), numbers(_mm512_loadu_ps(Levels(linear, outputs.first).numbers)) {}

    void enter(int64_t group) { levels.enter(group); }

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        const Words places = words[group * 4 + i % 8 / 2] >> (i / 8 * 4 + i % 2 * 16);  // of which four bits count
        return levels.of(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(places), numbers));
    }
};

// The lanes for weights that one output's are read from as a `Kind`.
template <typename Kind>
struct LanesOf {
    using Lanes = AnyLanes<Kind>;
};
template <>
struct LanesOf<Integers<Bfloat16>> {
    using Lanes = ByteLanes;
};
template <>
struct LanesOf<Multiples<Bfloat16>> {
    using Lanes = MultipleLanes;
};
template <template <typename> typename Levels>
struct LanesOf<Nibbles<Bfloat16, Levels>> {
    using Lanes = NibbleLanes<Levels<Bfloat16>>;
};

#endif
