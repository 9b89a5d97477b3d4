// Products of one row with quantized weights: in vectors, with an output in each lane, and to the bit what tiles would make. To
// write such weights out for tiles takes up to twice as long.

#pragma once

#include "aligned.h"
#include "lane_weights.h"
#include "tile_ends.h"

#ifdef TILES

// Has a thread take numbers too small to be normal for zero, as tiles do, for as long as this object lives.
class Flushing {
  public:
    Flushing() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | 0x40); }
    ~Flushing() { _mm_setcsr(before_); }
    Flushing(const Flushing&) = delete;

  private:
    const unsigned before_ = _mm_getcsr();
};

// Adds the products of a group's inputs: those of even inputs and those of odd ones apart, as one instruction of tiles does.
template <typename Lanes>
[[gnu::always_inline]] inline __m512 add_in_lanes(const Lanes& lanes, int64_t group, const float* row, __m512 sums) {
    static_assert(GROUP == DEEP);
    __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 16
    for (int i = 0; i < GROUP; i += 2) {
        even = _mm512_fmadd_ps(lanes.weights(group, i), _mm512_set1_ps(row[i]), even);
        odd = _mm512_fmadd_ps(lanes.weights(group, i + 1), _mm512_set1_ps(row[i + 1]), odd);
    }
    return _mm512_add_ps(sums, _mm512_add_ps(even, odd));
}

// Multiplies one row into the outputs `begin` to `end`, 16 at a time.
template <typename Kind>
void multiply_in_lanes(const Linear<Bfloat16>& linear, const Bfloat16* row, Bfloat16* output, int64_t begin, int64_t end) {
    using Lanes = typename LanesOf<Kind>::Lanes;
    thread_local Aligned<float> room;
    const int64_t inputs = linear.inputs;
    float* wide = at_least(room, inputs);
    convert_all(row, inputs, wide);
    const Flushing flushing;
    for (int64_t n = begin; n < end; n += LANES) {
        const int64_t count = std::min(LANES, end - n);
        Lanes lanes(linear, {n, count});
        __m512 sums = _mm512_setzero_ps();
        for (int64_t k = 0; k < inputs; k += Lanes::INPUTS) {
            lanes.read(k);
            for (int64_t at = k; at < std::min(k + Lanes::INPUTS, inputs); at += GROUP) {
                lanes.enter(at / GROUP);
                sums = add_in_lanes(lanes, (at - k) / GROUP, wide + at, sums);
            }
        }
        finish_row(linear, _mm512_mul_ps(sums, _mm512_set1_ps(Lanes::SCALE)), n, count, output);
    }
}

#endif
