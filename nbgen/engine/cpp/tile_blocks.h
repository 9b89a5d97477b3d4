// Products of many rows, which are laid out in tiles, with a weight in tiles. Weights are packed, some outputs at a time.

#pragma once

#include "tile_weight.h"

#ifdef TILES

constexpr int64_t WIDE = 4 * BLOCK;   // outputs whose packed weights stay in the second-level cache
constexpr int64_t NEAR_INPUTS = 384;  // inputs of a block of rows that stay in the first-level cache

// A block's sums `[2 tiles of outputs, 2 of rows, 16 rows, 16 outputs]`. `rows` of them become outputs, `stride` apart, while the
// next block is multiplied: tiles leave a processor's vectors idle.
class Finish {
  public:
    Finish() = default;
    Finish(const float* sums, const Weight& weight, int64_t n, int64_t end, int64_t rows, Bfloat16* output, int64_t stride)
        : sums_(sums), output_(output), stride_(stride), rows_(rows) {
        const int64_t count = std::min(BLOCK, end - n), low = std::min(SIDE, count);
        some_ = static_cast<__mmask32>((int64_t{1} << count) - 1);
        first_ = Ends(weight.layer, n, low), second_ = Ends(weight.layer, n + low, count - low);
    }

    // Writes so many more rows, if they are left; returns whether some were.
    bool advance(int64_t rows) {
        if (next_ == rows_) return false;
        for (; rows > 0 && next_ < rows_; rows--, next_++) {
            const float* own = sums_ + next_ * SIDE;
            const __m512 left = first_(_mm512_load_ps(own)), right = second_(_mm512_load_ps(own + BLOCK * SIDE));
            const __m512i narrow = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left));
            _mm512_mask_storeu_epi16(output_ + next_ * stride_, some_, narrow);
        }
        return true;
    }

  private:
    const float* sums_ = nullptr;
    Bfloat16* output_ = nullptr;
    int64_t stride_ = 0, rows_ = 0, next_ = 0;
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

// A block of rows laid out in tiles, `[inputs / 32, 2, 16, 32]`, from an input on; and what follows it, which is prefetched.
struct RowBlock {
    const Bfloat16 *rows, *ahead;

    // Prefetches some lines of what follows.
    void fetch(int64_t lines) {
        for (; lines > 0; lines--, ahead += LINE / sizeof(Bfloat16)) fetch_line(ahead);
    }
};

// Adds the products of a block of rows with one tile of `packed` outputs to sums `[2, 16 rows, 16 outputs]`: of the inputs `from`
// to `end`, for each 32 of which some `lines` are prefetched.
template <typename Work>
void add_block(RowBlock& block, const Bfloat16* packed, int64_t from, int64_t end, int64_t lines, Beside<Work>& beside,
               float* sums) {
    const int64_t each = cuts(BLOCK * DEEP, end - from);
    const Bfloat16* rows = block.rows;
    packed += from * SIDE;
    asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
    begin_tiles(sums, !from);
    for (int64_t k = from; k < end; k += DEEP, packed += TILE, rows += 2 * TILE) {
        LOAD_TILE(6, packed, 64);
        LOAD_TILE(4, rows, 64);
        ADD_TILES(0, 4, 6);
        LOAD_TILE(4, rows + TILE, 64);
        ADD_TILES(1, 4, 6);
        block.fetch(lines);
        beside.advance(each);
    }
    end_tiles(sums);
    asm volatile("" ::: "memory");
}

// Where rows of outputs go, `stride` apart.
struct Outputs {
    Bfloat16* numbers;
    int64_t stride;
};

// The outputs `begin` to `end` of a layer, or of several that are as large, `WIDE` at most in all. Their weights are packed, and
// blocks of rows are multiplied by them.
class PackedOutputs {
  public:
    PackedOutputs(std::initializer_list<const Weight*> weights, int64_t begin, int64_t end)
        : weights_(weights), begin_(begin), end_(end), inputs_((*weights.begin())->inputs),
          size_(cuts(end - begin, SIDE) * SIDE * inputs_) {
        Bfloat16* packed = room_for_tiles<1>(weights.size() * size_);
        packed_ = packed;
        for (const Weight* weight : weights_) pack_weights(*weight, begin, end, std::exchange(packed, packed + size_));
    }

    // Multiplies a block of rows, laid out in tiles, of which `count` are wanted, into rows of each layer's outputs.
    template <typename Work>
    void multiply(const Bfloat16* rows, int64_t count, std::initializer_list<Outputs> outputs, Beside<Work>& beside) {
        const int64_t sides = weights_.size() * size_ / inputs_ / SIDE;
        for (int64_t from = 0; from < inputs_; from += NEAR_INPUTS) {
            const int64_t to = std::min(from + NEAR_INPUTS, inputs_);
            RowBlock block{rows + from * BLOCK, rows + to * BLOCK};
            int64_t slot = used_;
            const Bfloat16* packed = packed_;
            auto output = outputs.begin();
            for (const Weight* weight : weights_) {
                for (int64_t n = begin_; n < end_; n += BLOCK) {
                    float* own = sums_[slot++ % SLOTS];
                    for (int64_t side = n; side < std::min(n + BLOCK, end_); side += SIDE, packed += SIDE * inputs_)
                        add_block(block, packed, from, to, cuts(BLOCK, sides), beside, own + (side - n) * BLOCK);
                    if (to < inputs_) continue;
                    beside.before.advance(BLOCK);
                    beside.before = Finish(own, *weight, n, end_, count, output->numbers + n - begin_, output->stride);
                }
                output++;
            }
            if (to == inputs_) used_ = slot;
        }
    }

  private:
    static constexpr int64_t SLOTS = WIDE / BLOCK + 1;  // the last of the block of rows before is finished meanwhile

    std::vector<const Weight*> weights_;
    int64_t begin_, end_, inputs_, size_, used_ = 0;
    const Bfloat16* packed_;
    alignas(64) float sums_[SLOTS][BLOCK * BLOCK];
};

// Multiplies `rows` rows that are laid out in tiles into the outputs `begin` to `end`, `WIDE` at most, of `output`
// `[rows, outputs]`.
inline void multiply_by_packed_weights(const Weight& weight, int64_t rows, const Bfloat16* laid, Bfloat16* output, int64_t begin,
                                       int64_t end) {
    const auto none = [](int64_t) {};
    Beside<decltype(none)> beside{none};
    PackedOutputs outputs({&weight}, begin, end);
    for (int64_t m = 0; m < rows; m += BLOCK)
        outputs.multiply(laid + m * weight.inputs, std::min(BLOCK, rows - m),
                         {{output + m * weight.outputs + begin, weight.outputs}}, beside);
    beside.complete();
}

// The same for a `gate` and for `up`, half as many outputs: `open(gates, ups, count)` then makes one row's outputs of `gates`, in
// place. The outputs of `up` are not kept.
template <typename Open>
void multiply_gated(const Weight& gate, const Weight& up, int64_t rows, const Bfloat16* laid, Bfloat16* output, int64_t begin,
                    int64_t end, const Open& open) {
    alignas(64) Bfloat16 ups[2][BLOCK * WIDE / 2];
    const int64_t count = end - begin;
    Bfloat16* opened = nullptr;
    int64_t turn = 0;
    const auto work = [&](int64_t row) { open(opened + row * gate.outputs, ups[turn % 2] + row * count, count); };
    Beside<decltype(work)> beside{work};
    PackedOutputs both({&gate, &up}, begin, end);
    for (int64_t m = 0; m < rows; m += BLOCK) {
        const int64_t some = std::min(BLOCK, rows - m);
        Bfloat16* made = output + m * gate.outputs + begin;
        both.multiply(laid + m * gate.inputs, some, {{made, gate.outputs}, {ups[(turn + 1) % 2], count}}, beside);
        beside.complete();
        opened = made, turn++;
        beside.row = 0, beside.rows = some;
    }
    beside.complete();
}

#endif
