// Products of one row with integers of 8 bits: in vectors, and to the bit what tiles would make. To write such weights out for
// tiles takes twice as long.

#pragma once

#include "tile_rows.h"

#ifdef TILES

constexpr float BYTE_SCALE = 1.0f / (1 << 24);

// Has a thread take numbers too small to be normal for zero, as tiles do, for as long as this object lives.
class Flushing {
  public:
    Flushing() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | 0x40); }
    ~Flushing() { _mm_setcsr(before_); }
    Flushing(const Flushing&) = delete;

  private:
    const unsigned before_ = _mm_getcsr();
};

// Whether a layer's weights are integers of 8 bits, with a scale for each output.
inline bool are_whole_bytes(const Linear<Bfloat16>& layer) {
    return layer.integers && !layer.factors && !layer.floats && !layer.steps && !layer.numbers && !layer.exponents;
}

// A signed byte of each word, times 2^24. `FROM` is the byte's number.
template <int FROM>
[[gnu::always_inline]] inline __m512 byte_of(Words words) {
    const __m512i from = _mm512_add_epi32(_mm512_set4_epi32(0x0c808080, 0x08808080, 0x04808080, 0x00808080),
                                          _mm512_set1_epi32(FROM << 24));
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(words), from));
}

// Adds the products of 32 inputs with the weights of 16 outputs, of which a word holds four inputs: those of even inputs and those
// of odd ones apart, as one instruction of tiles does.
[[gnu::always_inline]] inline __m512 add_bytes(const Words* words, const float* row, __m512 sums) {
    __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 8
    for (int64_t i = 0; i < DEEP / 4; i++, row += 4) {
        even = _mm512_fmadd_ps(byte_of<0>(words[i]), _mm512_set1_ps(row[0]), even);
        odd = _mm512_fmadd_ps(byte_of<1>(words[i]), _mm512_set1_ps(row[1]), odd);
        even = _mm512_fmadd_ps(byte_of<2>(words[i]), _mm512_set1_ps(row[2]), even);
        odd = _mm512_fmadd_ps(byte_of<3>(words[i]), _mm512_set1_ps(row[3]), odd);
    }
    return _mm512_add_ps(sums, _mm512_add_ps(even, odd));
}

// Multiplies one row into the outputs `begin` to `end`, 16 at a time, one in each lane.
inline void multiply_row_by_bytes(const Weight& weight, const Bfloat16* row, Bfloat16* output, int64_t begin, int64_t end) {
    thread_local Aligned<float> room;
    alignas(64) float sums[SIDE];
    const int64_t inputs = weight.inputs;
    float* wide = at_least(room, inputs);
    for (int64_t k = 0; k < inputs; k++) wide[k] = widen(row[k]);
    const Flushing flushing;
    for (int64_t n = begin; n < end; n += SIDE) {
        const int64_t count = std::min(SIDE, end - n);
        const int8_t* bytes = weight.layer.integers + n * inputs;
        __m512 sum = _mm512_setzero_ps();
        for (int64_t k = 0; k < inputs; k += LINE) {
            const int64_t left = std::min(LINE, inputs - k);
            fetch_ahead(bytes, SIDE, inputs, k);
            Words words[LANES];
#pragma GCC unroll 16
            for (int64_t l = 0; l < LANES; l++) {
                const int8_t* own = bytes + std::min(l, count - 1) * inputs + k;
                words[l] = reinterpret_cast<Words>(_mm512_maskz_loadu_epi8(~uint64_t{0} >> (LINE - left), own));
            }
            transpose(words);
            sum = add_bytes(words, wide + k, sum);
            if (left > DEEP) sum = add_bytes(words + DEEP / 4, wide + k + DEEP, sum);
        }
        _mm512_store_ps(sums, _mm512_mul_ps(sum, _mm512_set1_ps(BYTE_SCALE)));
        finish_row(weight, sums, n, count, output);
    }
}

#endif
