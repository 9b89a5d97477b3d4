// Products of a few rows with a weight in tiles. Rows are packed, with pairs of inputs of 16 rows side by side; weights are read as
// they lie, and those that are not plain are written out, some outputs at a time.

#pragma once

#include "tile_weight.h"

#ifdef TILES

constexpr int64_t FEW_FOR_TILES = 128;  // rows, up to which it pays to pack them rather than weights
constexpr int64_t PASS = 512;  // inputs whose weights, for two tiles of outputs, stay in the first-level cache while all rows pass

inline bool few_for_tiles(int64_t rows) { return rows <= FEW_FOR_TILES; }

// Sums of a block, `[2, 16 outputs, 16 rows]`, which become rows of the output, of the outputs from `n` on, while the next block is
// multiplied: tiles leave a processor's vectors idle.
class FinishTurned {
  public:
    FinishTurned() = default;
    FinishTurned(const float* sums, const Weight& weight, int64_t n, int64_t end, int64_t rows, Bfloat16* output)
        : sums_(sums), weight_(&weight), n_(n), end_(end), rows_(rows), output_(output) {}

    // Writes one more tile, if one is left.
    void advance() {
        if (n_ >= end_) return;
        write();
        n_ += SIDE, sums_ += SIDE * SIDE;
    }

    void complete() {
        while (n_ < end_) advance();
    }

  private:
    void write() const {
        Words rows[LANES];
        std::memcpy(rows, sums_, sizeof rows);
        transpose(rows);
        const int64_t some = std::min(SIDE, end_ - n_);
        const Ends ends(weight_->layer, n_, some);
        for (int64_t i = 0; i < rows_; i++) {
            const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(ends(reinterpret_cast<__m512>(rows[i]))));
            _mm256_mask_storeu_epi16(output_ + i * weight_->outputs + n_, static_cast<__mmask16>((1 << some) - 1), narrow);
        }
    }

    const float* sums_ = nullptr;
    const Weight* weight_ = nullptr;
    int64_t n_ = 0, end_ = 0, rows_ = 0;
    Bfloat16* output_ = nullptr;
};

// Adds the products of `weights`, of one tile of outputs or `two`, as they lie, with one tile of packed rows to sums
// `[2, 16 outputs, 16 rows]`: of the inputs `from` to `end` of all `inputs`. Meanwhile it finishes `before`, and prefetches what
// comes next if the weights are `fresh`.
inline void add_turned(const Bfloat16* weights, bool two, bool fresh, const Bfloat16* rows, int64_t inputs, int64_t from,
                       int64_t end, FinishTurned& before, float* sums) {
    const int64_t stride = inputs * sizeof(Bfloat16);
    asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
    begin_tiles(sums, !from);
    for (int64_t k = from; k < end; k += DEEP) {
        LOAD_TILE(6, rows + k * SIDE, 64);
        LOAD_TILE(4, weights + k, stride);
        ADD_TILES(0, 4, 6);
        if (two) {
            LOAD_TILE(4, weights + SIDE * inputs + k, stride);
            ADD_TILES(1, 4, 6);
        }
        if (fresh) fetch_ahead(weights, BLOCK, inputs, k);
        before.advance();
    }
    end_tiles(sums);
    asm volatile("" ::: "memory");
}

// Multiplies `packed` rows into the outputs `begin` to `end` of `output` `[rows, outputs]`.
inline void multiply_packed_rows(const Weight& weight, int64_t rows, const Bfloat16* packed, Bfloat16* output, int64_t begin,
                                 int64_t end) {
    thread_local Aligned<float> room;
    constexpr int64_t OWN = BLOCK * SIDE;
    const int64_t inputs = weight.inputs, sides = cuts(rows, SIDE), chunk = sides > 1 ? PASS : inputs;
    float* sums = at_least(room, 2 * sides * OWN);
    FinishTurned before;
    for (int64_t n = begin; n < end; n += BLOCK) {
        const int64_t last = std::min(end, n + BLOCK);
        const Bfloat16* numbers = weight.numbers(n, last, room_for_tiles<2>(BLOCK * inputs), BLOCK);
        for (int64_t k = 0; k < inputs; k += chunk)
            for (int64_t side = 0; side < sides; side++) {
                const int64_t m = side * SIDE, to = std::min(k + chunk, inputs);
                float* own = sums + (n / BLOCK % 2 * sides + side) * OWN;
                add_turned(numbers, last - n > SIDE, !side && !weight.kind, packed + m * inputs, inputs, k, to, before, own);
                if (to < inputs) continue;
                before.complete();
                before = FinishTurned(own, weight, n, last, std::min(SIDE, rows - m), output + m * weight.outputs);
            }
    }
    before.complete();
}

// Multiplies one row into the outputs `begin` to `end` of a plain weight. Tiles have one column: the row, and so each tile's sums,
// lie side by side.
inline void multiply_row(const Weight& weight, const Bfloat16* row, Bfloat16* output, int64_t begin, int64_t end) {
    alignas(64) float sums[SIDE];
    const int64_t inputs = weight.inputs, stride = inputs * sizeof(Bfloat16);
    for (int64_t n = begin; n < end; n += SIDE) {
        const int64_t count = std::min(SIDE, end - n);
        const Bfloat16* numbers = weight.numbers(n, n + count, room_for_tiles<2>(SIDE * inputs), SIDE);
        asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
        CLEAR_TILE(0);
        for (int64_t k = 0; k < inputs; k += DEEP) {
            LOAD_TILE(6, row + k, 4);
            LOAD_TILE(4, numbers + k, stride);
            ADD_TILES(0, 4, 6);
            fetch_ahead(numbers, SIDE, inputs, k);
        }
        STORE_TILE(0, sums, 4);
        asm volatile("" ::: "memory");
        finish_row(weight.layer, _mm512_load_ps(sums), n, count, output);
    }
}

#endif
