// Products of many rows with a weight in tiles. Weights are packed, some outputs at a time, and rows are read as they lie.

#pragma once

#include "tile_weight.h"

#ifdef TILES

constexpr int64_t WIDE = 4 * BLOCK;   // outputs whose packed weights stay in the second-level cache
constexpr int64_t NEAR_INPUTS = 384;  // inputs of a block of rows that stay in the first-level cache

// A block's sums `[2, 2, 16 rows, 16 outputs]`, which become rows of its outputs, `stride` apart, while the next block is
// multiplied: tiles leave a processor's vectors idle.
class Finish {
  public:
    Finish() = default;
    Finish(const float* sums, const Weight& weight, int64_t n, int64_t end, Bfloat16* output, int64_t stride)
        : sums_(sums), output_(output), stride_(stride), left_(BLOCK) {
        const int64_t count = std::min(BLOCK, end - n), low = std::min(SIDE, count);
        some_ = static_cast<__mmask32>((int64_t{1} << count) - 1);
        first_ = weight.ends_of(n, low), second_ = weight.ends_of(n + low, count - low);
    }

    // Writes so many more rows, if they are left; returns whether some were.
    bool advance(int64_t rows) {
        if (!left_) return false;
        for (; rows > 0 && left_ > 0; rows--, left_--) {
            const int64_t i = BLOCK - left_;
            const float* own = sums_ + i / SIDE * 512 + i % SIDE * SIDE;
            const __m512 left = first_(_mm512_load_ps(own)), right = second_(_mm512_load_ps(own + 256));
            const __m512i narrow = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left));
            _mm512_mask_storeu_epi16(output_ + i * stride_, some_, narrow);
        }
        return true;
    }

  private:
    const float* sums_ = nullptr;
    Bfloat16* output_ = nullptr;
    int64_t stride_ = 0, left_ = 0;
    __mmask32 some_ = 0;
    Ends first_, second_;
};

// What a processor's vectors do while its tiles multiply: they finish the block `before`, and then some `rows` of other work.
template <typename Work>
struct Beside {
    const Work& work;  // of a row
    Finish before = {};
    int64_t row = 0, rows = 0;

    void advance(int64_t some) {
        if (!before.advance(some) && row < rows) work(row++);
    }

    void complete() {
        before.advance(BLOCK);
        while (row < rows) work(row++);
    }
};

// Adds the products of a block of rows, of the inputs `from` to `end`, with a packed block of weights, of one tile of outputs or
// `two`, to sums `[2, 2, 16 rows, 16 outputs]`.
template <typename Work>
void add_block(const Bfloat16* rows, int64_t inputs, const Bfloat16* packed, bool two, int64_t from, int64_t end,
               Beside<Work>& beside, float* sums) {
    const int64_t stride = inputs * sizeof(Bfloat16), each = cuts(2 * BLOCK * DEEP, end - from);
    asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
    begin_tiles(sums, !from);
    packed += from * BLOCK;
    for (int64_t k = from; k < end; k += DEEP, packed += 2 * TILE) {
        LOAD_TILE(4, rows + k, stride);
        LOAD_TILE(6, packed, 64);
        ADD_TILES(0, 4, 6);
        if (two) {
            LOAD_TILE(7, packed + TILE, 64);
            ADD_TILES(1, 4, 7);
        }
        LOAD_TILE(5, rows + SIDE * inputs + k, stride);
        ADD_TILES(2, 5, 6);
        if (two) ADD_TILES(3, 5, 7);
        beside.advance(each);
    }
    end_tiles(sums);
    asm volatile("" ::: "memory");
}

// The outputs `begin` to `end` of a layer, `WIDE` at most, whose weights are packed; blocks of rows are multiplied by them.
class PackedOutputs {
  public:
    PackedOutputs(const Weight& weight, int64_t begin, int64_t end, Bfloat16* packed)
        : weight_(weight), begin_(begin), end_(end), packed_(pack_weights(weight, begin, end, packed)) {}

    // Numbers that the packed weights take.
    static int64_t size(const Weight& weight, int64_t outputs) { return cuts(outputs, BLOCK) * BLOCK * weight.inputs; }

    // Multiplies a block of rows into rows of these outputs, `stride` apart.
    template <typename Work>
    void multiply(const Bfloat16* rows, Bfloat16* output, int64_t stride, Beside<Work>& beside) {
        const int64_t inputs = weight_.inputs;
        for (int64_t k = 0; k < inputs; k += NEAR_INPUTS) {
            const int64_t last = std::min(k + NEAR_INPUTS, inputs);
            int64_t slot = used_;
            for (int64_t n = begin_; n < end_; n += BLOCK) {
                float* own = sums_[slot++ % SLOTS];
                add_block(rows, inputs, packed_ + (n - begin_) * inputs, end_ - n > SIDE, k, last, beside, own);
                if (last < inputs) continue;
                beside.before.advance(BLOCK);
                beside.before = Finish(own, weight_, n, end_, output + n - begin_, stride);
            }
            if (last == inputs) used_ = slot;
        }
    }

  private:
    static constexpr int64_t SLOTS = WIDE / BLOCK + 1;  // the last of the block of rows before is finished meanwhile

    const Weight& weight_;
    int64_t begin_, end_, used_ = 0;
    const Bfloat16* packed_;
    alignas(64) float sums_[SLOTS][4 * SIDE * SIDE];
};

// Calls `work(row)` with the first row of each block of rows, a block at least. The last block may overlap the one before, whose
// rows are completed first.
template <typename Other, typename Work>
void each_block(int64_t rows, Beside<Other>& beside, const Work& work) {
    int64_t m = 0;
    for (; m + BLOCK <= rows; m += BLOCK) work(m);
    beside.complete();
    if (m < rows) work(rows - BLOCK);
    beside.complete();
}

// Multiplies rows `[rows, inputs]`, a block at least, into the outputs `begin` to `end`, `WIDE` at most, of `output`
// `[rows, outputs]`.
inline void multiply_by_packed_weights(const Weight& weight, int64_t rows, const Bfloat16* numbers, Bfloat16* output,
                                       int64_t begin, int64_t end) {
    const auto none = [](int64_t) {};
    Beside<decltype(none)> beside{none};
    PackedOutputs outputs(weight, begin, end, room_for_tiles<1>(PackedOutputs::size(weight, end - begin)));
    each_block(rows, beside, [&](int64_t m) {
        outputs.multiply(numbers + m * weight.inputs, output + m * weight.outputs + begin, weight.outputs, beside);
    });
}

// The same for a `gate` and for `up`, half as many outputs: `open(gates, ups, count)` then makes one row's outputs of `gates`, in
// place. The outputs of `up` are not kept.
template <typename Open>
void multiply_gated(const Weight& gate, const Weight& up, int64_t rows, const Bfloat16* numbers, Bfloat16* output,
                    int64_t begin, int64_t end, const Open& open) {
    alignas(64) Bfloat16 ups[2][BLOCK * WIDE / 2];
    const int64_t inputs = gate.inputs, count = end - begin, size = PackedOutputs::size(gate, count);
    Bfloat16 *room = room_for_tiles<1>(2 * size), *opened = nullptr;
    int64_t turn = 0;
    const auto work = [&](int64_t row) { open(opened + row * gate.outputs, ups[turn % 2] + row * count, count); };
    Beside<decltype(work)> beside{work};
    PackedOutputs gates(gate, begin, end, room), others(up, begin, end, room + size);
    each_block(rows, beside, [&](int64_t m) {
        Bfloat16* own = output + m * gate.outputs + begin;
        gates.multiply(numbers + m * inputs, own, gate.outputs, beside);
        others.multiply(numbers + m * inputs, ups[(turn + 1) % 2], count, beside);
        beside.complete();
        opened = own, turn++;
        beside.row = 0, beside.rows = BLOCK;
    });
}

#endif
