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

// A cache line of each output's weights of a kind. A vector has the word of the same number of all outputs.
template <typename Kind>
struct LaneLines {
    static constexpr int64_t INPUTS = LINE * 8 / Kind::BITS;
    const char* first;
    int64_t bytes;  // of an output
    LaneOutputs outputs;
    Words words[LANES];

    LaneLines(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : first(Kind(linear, outputs.first).bytes(0)), bytes(linear.inputs * Kind::BITS / 8), outputs(outputs) {}

    // Reads the line that begins with the input `k`.
    [[gnu::always_inline]] void read(int64_t k) {
        const int64_t at = k * Kind::BITS / 8, left = std::min(LINE, bytes - at);
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
struct ByteLanes : LaneLines<Integers<Bfloat16>> {
    static constexpr float SCALE = 1.0f / (1 << 24);
    using LaneLines::LaneLines;

    void enter(int64_t) {}

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        const __m512i last = _mm512_set4_epi32(0x0c808080, 0x08808080, 0x04808080, 0x00808080);
        const __m512i from = _mm512_add_epi32(last, _mm512_set1_epi32(i % 4 << 24));
        return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(words[group * 8 + i / 4]), from));
    }
};

// The same, times the factor of their groups. Factors below 2^-102 count as zero.
struct MultipleLanes : ByteLanes {
    static constexpr float SCALE = 1;
    const Multiples<Bfloat16> own;  // of the first output
    __m512i places;
    __m512 factor;

    MultipleLanes(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : ByteLanes(linear, outputs), own(linear, outputs.first), places(outputs.places(linear.inputs / GROUP >> linear.shift)) {}

    void enter(int64_t group) {
        const __m512 factors = _mm512_i32gather_ps(places, own.factors + (group >> own.shift), 4);
        factor = _mm512_mul_ps(factors, _mm512_set1_ps(ByteLanes::SCALE));
    }

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        return in_bfloat16(_mm512_mul_ps(ByteLanes::weights(group, i), factor));
    }
};

// What makes levels of the numbers that all groups share, in each lane by the parameters of its output's group: those of the first
// output are at `first`.
template <typename Levels>
struct LaneLevels;

template <>
struct LaneLevels<Steps<Bfloat16>> {
    static constexpr int64_t GROUPS = 1;  // that share a parameter
    __m512 step, middle;

    void enter(const Bfloat16* first, __m512i places) {
        const __m512i pairs = _mm512_i32gather_epi32(places, first, 4);
        step = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        middle = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }

    [[gnu::always_inline]] __m512 of(__m512 counts) const { return in_bfloat16(_mm512_fmadd_ps(counts, step, middle)); }
};

// Powers too small to be normal count as zero. They are bytes, which are read by whole words: after the last one memory may end.
template <>
struct LaneLevels<Powers<Bfloat16>> {
    static constexpr int64_t GROUPS = 1;
    __m512 power;

    void enter(const uint8_t* first, __m512i places) {
        const int odd = static_cast<int>(reinterpret_cast<uintptr_t>(first) % 4);
        const __m512i own = _mm512_add_epi32(places, _mm512_set1_epi32(odd));
        const __m512i within = _mm512_slli_epi32(_mm512_and_si512(own, _mm512_set1_epi32(3)), 3);
        const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(own, 2), first - odd, 4);
        const __m512i exponents = _mm512_and_si512(_mm512_srlv_epi32(words, within), _mm512_set1_epi32(255));
        power = _mm512_castsi512_ps(_mm512_slli_epi32(exponents, 23));
    }

    [[gnu::always_inline]] __m512 of(__m512 numbers) const { return _mm512_mul_ps(numbers, power); }
};

template <>
struct LaneLevels<Scaled<Bfloat16>> {
    static constexpr int64_t GROUPS = 2;
    __m512 factor;

    void enter(const float* first, __m512i places) { factor = _mm512_i32gather_ps(places, first, 4); }

    [[gnu::always_inline]] __m512 of(__m512 numbers) const { return in_bfloat16(_mm512_mul_ps(numbers, factor)); }
};

// Weights of 4 bits.
template <template <typename> typename Levels>
struct NibbleLanes : LaneLines<Nibbles<Bfloat16, Levels>> {
    using Lines = LaneLines<Nibbles<Bfloat16, Levels>>;
    static constexpr float SCALE = 1;
    const Levels<Bfloat16> own;  // of the first output
    LaneLevels<Levels<Bfloat16>> levels;
    __m512i places;
    __m512 numbers;

    NibbleLanes(const Linear<Bfloat16>& linear, const LaneOutputs& outputs)
        : Lines(linear, outputs), own(linear, outputs.first), places(outputs.places(linear.inputs / GROUP / levels.GROUPS)),
          numbers(_mm512_loadu_ps(own.numbers)) {}

    void enter(int64_t group) { levels.enter(own.at(group), places); }

    [[gnu::always_inline]] __m512 weights(int64_t group, int i) const {
        const Words indices = Lines::words[group * 4 + i % 8 / 2] >> (i / 8 * 4 + i % 2 * 16);  // of which four bits count
        return levels.of(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(indices), numbers));
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
    using Lanes = NibbleLanes<Levels>;
};

#endif
