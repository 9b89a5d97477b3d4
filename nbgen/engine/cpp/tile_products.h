// Products of rows with a plain weight in tiles, where the processor has them.
//
// A few rows are packed, with pairs of inputs of 16 rows side by side, and weights are read as they lie. For many rows it is the
// weights that are packed, and rows that are read as they lie. Both ways a sum takes the inputs in order, 32 at a time, so that
// its bits do not depend on the rows beside it, nor on how the work is cut.

#pragma once

#include "aligned.h"
#include "cut.h"
#include "packed.h"
#include "tiles.h"

#ifdef TILES

constexpr int64_t BLOCK = 2 * SIDE;       // rows, and outputs, whose sums fill four tiles
constexpr int64_t FEW_FOR_TILES = 128;    // rows, up to which it pays to pack them rather than weights
constexpr int64_t WIDE = 4 * BLOCK;       // outputs whose packed weights stay in the second-level cache
constexpr int64_t NEAR_INPUTS = 384;      // inputs of a block of rows that stay in the first-level cache
constexpr int64_t PASS = 512;  // inputs whose weights, for two tiles of outputs, stay in the first-level cache while all rows pass

// A thread's own buffer, one for each `Use`.
template <int Use>
Bfloat16* room_for_tiles(int64_t size) {
    thread_local Aligned<Bfloat16> numbers;
    return at_least(numbers, size);
}

// Packs `count` rows `[count, inputs]`, one side of tiles at most, as the right side of products: one tile for each 32 inputs,
// these tiles `apart` from each other. The last row is repeated to fill them.
inline void pack_side(const Bfloat16* rows, int64_t count, int64_t inputs, Bfloat16* packed, int64_t apart) {
    for (int64_t k = 0; k < inputs; k += DEEP, packed += apart) {
        Words words[LANES];
#pragma GCC unroll 16
        for (int64_t l = 0; l < LANES; l++) words[l] = words_at(rows + std::min(l, count - 1) * inputs + k);
        transpose(words);
#pragma GCC unroll 16
        for (int64_t l = 0; l < LANES; l++) put(words[l], packed + l * DEEP);
    }
}

// Packs rows `[rows, inputs]` to `[rows / 16, inputs / 32, 16, 16, 2]`.
inline const Bfloat16* pack_rows_for_tiles(int64_t rows, int64_t inputs, const Bfloat16* numbers) {
    Bfloat16* packed = room_for_tiles<0>(cuts(rows, SIDE) * SIDE * inputs);
    for (int64_t m = 0; m < rows; m += SIDE)
        pack_side(numbers + m * inputs, std::min(SIDE, rows - m), inputs, packed + m * inputs, TILE);
    return packed;
}

// A weight `[outputs, inputs]`; `bias` may be null.
struct Weight {
    const Bfloat16 *numbers, *bias;
    int64_t inputs, outputs;

    // The bias of `count` outputs from `n` on, 16 at most.
    __m512 bias_of(int64_t n, int64_t count) const {
        const __m256i some = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1 << count) - 1), bias + n);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16));
    }
};

// Sums of four tiles, as they are before products are added: zero if they are `fresh`.
inline void begin_tiles(const float* sums, bool fresh) {
    if (fresh) {
        CLEAR_TILE(0);
        CLEAR_TILE(1);
        CLEAR_TILE(2);
        CLEAR_TILE(3);
    } else {
        LOAD_TILE(0, sums, 64);
        LOAD_TILE(1, sums + 256, 64);
        LOAD_TILE(2, sums + 512, 64);
        LOAD_TILE(3, sums + 768, 64);
    }
}

inline void end_tiles(float* sums) {
    STORE_TILE(0, sums, 64);
    STORE_TILE(1, sums + 256, 64);
    STORE_TILE(2, sums + 512, 64);
    STORE_TILE(3, sums + 768, 64);
}

// Sums of a block, `[2, 2, 16 outputs, 16 rows]`, which become rows of the output, of the outputs from `n` on, while the next block
// is multiplied: tiles leave a processor's vectors idle.
class FinishTurned {
  public:
    FinishTurned() = default;
    FinishTurned(const float* sums, const Weight& weight, int64_t n, int64_t end, int64_t rows, Bfloat16* output)
        : sums_(sums), weight_(&weight), n_(n), end_(end), rows_(rows), output_(output) {}

    // Writes one more tile, if one is left.
    void advance() {
        for (; next_ < 4; next_++) {
            const int64_t n = n_ + next_ / 2 * SIDE, m = next_ % 2 * SIDE;
            if (n < end_ && m < rows_) return write(sums_ + next_++ * SIDE * SIDE, n, std::min(SIDE, rows_ - m), m);
        }
    }

    void complete() {
        while (next_ < 4) advance();
    }

  private:
    void write(const float* sums, int64_t n, int64_t count, int64_t m) const {
        Words rows[LANES];
        std::memcpy(rows, sums, sizeof rows);
        transpose(rows);
        const int64_t some = std::min(SIDE, end_ - n);
        const __m512 more = weight_->bias ? weight_->bias_of(n, some) : _mm512_setzero_ps();
        for (int64_t i = 0; i < count; i++) {
            __m512 row = reinterpret_cast<__m512>(rows[i]);
            if (weight_->bias) row = _mm512_add_ps(row, more);
            const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(row));
            _mm256_mask_storeu_epi16(output_ + (m + i) * weight_->outputs + n, static_cast<__mmask16>((1 << some) - 1), narrow);
        }
    }

    const float* sums_ = nullptr;
    const Weight* weight_ = nullptr;
    int64_t n_ = 0, end_ = 0, rows_ = 0, next_ = 0;
    Bfloat16* output_ = nullptr;
};

// The outputs of one tile or two by the rows of one tile or two, which are packed.
struct TileBlock {
    const Bfloat16 *weights, *rows;
    int64_t inputs;
    bool two_outputs, two_rows;

    // Adds the products of the inputs `from` to `end` to the `sums` of four tiles. Meanwhile it finishes `before`.
    void add(int64_t from, int64_t end, FinishTurned& before, float* sums) const {
        const int64_t stride = inputs * sizeof(Bfloat16);
        asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
        begin_tiles(sums, !from);
        for (int64_t k = from; k < end; k += DEEP) {
            const Bfloat16* right = rows + k * SIDE;
            LOAD_TILE(4, weights + k, stride);
            LOAD_TILE(6, right, 64);
            ADD_TILES(0, 4, 6);
            if (two_rows) {
                LOAD_TILE(7, right + SIDE * inputs, 64);
                ADD_TILES(1, 4, 7);
            }
            if (two_outputs) {
                LOAD_TILE(5, weights + SIDE * inputs + k, stride);
                ADD_TILES(2, 5, 6);
                if (two_rows) ADD_TILES(3, 5, 7);
            }
            before.advance();
        }
        end_tiles(sums);
        asm volatile("" ::: "memory");
    }
};

// The weights of the outputs `begin` to `end`, a block at most, followed by others or, where the weight ends, by zeros.
inline const Bfloat16* whole_sides(const Weight& weight, int64_t begin, int64_t end) {
    const Bfloat16* numbers = weight.numbers + begin * weight.inputs;
    if ((end - begin) % SIDE == 0) return numbers;
    Bfloat16* room = room_for_tiles<2>(BLOCK * weight.inputs);
    std::copy_n(numbers, (end - begin) * weight.inputs, room);
    std::fill(room + (end - begin) * weight.inputs, room + BLOCK * weight.inputs, Bfloat16{});
    return room;
}

// Multiplies `packed` rows into the outputs `begin` to `end` of `output` `[rows, outputs]`.
inline void multiply_packed_rows(const Weight& weight, int64_t rows, const Bfloat16* packed, Bfloat16* output, int64_t begin,
                                 int64_t end) {
    thread_local Aligned<float> room;
    constexpr int64_t FOUR = 4 * SIDE * SIDE;
    const int64_t inputs = weight.inputs, blocks = cuts(rows, BLOCK), chunk = blocks > 1 ? PASS : inputs;
    float* sums = at_least(room, 2 * blocks * FOUR);
    FinishTurned before;
    for (int64_t n = begin; n < end; n += BLOCK) {
        const int64_t last = std::min(end, n + BLOCK);
        const Bfloat16* numbers = whole_sides(weight, n, last);
        for (int64_t k = 0; k < inputs; k += chunk)
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t m = b * BLOCK, size = std::min(chunk, inputs - k);
                const TileBlock block{numbers, packed + m * inputs, inputs, last - n > SIDE, rows - m > SIDE};
                float* own = sums + (n / BLOCK % 2 * blocks + b) * FOUR;
                block.add(k, k + size, before, own);
                if (k + size < inputs) continue;
                before.complete();
                before = FinishTurned(own, weight, n, last, std::min(BLOCK, rows - m), output + m * weight.outputs);
            }
    }
    before.complete();
}

// Multiplies one row into the outputs `begin` to `end`. Tiles have one column: the row, and so each tile's sums, lie side by side.
inline void multiply_row(const Weight& weight, const Bfloat16* row, Bfloat16* output, int64_t begin, int64_t end) {
    alignas(64) float sums[BLOCK];
    const int64_t inputs = weight.inputs, stride = inputs * sizeof(Bfloat16);
    for (int64_t n = begin; n < end; n += BLOCK) {
        const int64_t count = std::min(BLOCK, end - n), low = std::min(SIDE, count);
        const Bfloat16* numbers = whole_sides(weight, n, n + count);
        asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
        CLEAR_TILE(0);
        CLEAR_TILE(2);
        for (int64_t k = 0; k < inputs; k += DEEP) {
            LOAD_TILE(6, row + k, 4);
            LOAD_TILE(4, numbers + k, stride);
            ADD_TILES(0, 4, 6);
            if (count <= SIDE) continue;
            LOAD_TILE(5, numbers + SIDE * inputs + k, stride);
            ADD_TILES(2, 5, 6);
        }
        STORE_TILE(0, sums, 4);
        STORE_TILE(2, sums + SIDE, 4);
        asm volatile("" ::: "memory");
        __m512 left = _mm512_load_ps(sums), right = _mm512_load_ps(sums + SIDE);
        if (weight.bias)
            left = _mm512_add_ps(left, weight.bias_of(n, low)),
            right = _mm512_add_ps(right, weight.bias_of(n + low, count - low));
        const __m512i narrow = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left));
        _mm512_mask_storeu_epi16(output + n, static_cast<__mmask32>((int64_t{1} << count) - 1), narrow);
    }
}

// Packs the weights of the outputs `begin` to `end` to `[outputs / 32, inputs / 32, 2, 16, 16, 2]`.
inline const Bfloat16* pack_weights(const Weight& weight, int64_t begin, int64_t end) {
    Bfloat16* packed = room_for_tiles<1>(cuts(end - begin, BLOCK) * BLOCK * weight.inputs);
    for (int64_t n = begin; n < end; n += SIDE) {
        Bfloat16* to = packed + (n - begin) / BLOCK * BLOCK * weight.inputs + (n - begin) % BLOCK / SIDE * TILE;
        pack_side(weight.numbers + n * weight.inputs, std::min(SIDE, end - n), weight.inputs, to, 2 * TILE);
    }
    return packed;
}

// A block's sums `[2, 2, 16 rows, 16 outputs]`, which become its rows of the output from `n` on while the next block is multiplied:
// tiles leave a processor's vectors idle.
class Finish {
  public:
    Finish() = default;
    Finish(const float* sums, const Weight& weight, int64_t n, int64_t end, Bfloat16* output)
        : sums_(sums), output_(output + n), stride_(weight.outputs), biased_(weight.bias), left_(BLOCK) {
        const int64_t count = std::min(BLOCK, end - n), low = std::min(SIDE, count);
        some_ = static_cast<__mmask32>((int64_t{1} << count) - 1);
        if (biased_) first_ = weight.bias_of(n, low), second_ = weight.bias_of(n + low, count - low);
    }

    // Writes so many more rows, if they are left.
    void advance(int64_t rows) {
        for (; rows > 0 && left_ > 0; rows--, left_--) {
            const int64_t i = BLOCK - left_;
            const float* own = sums_ + i / SIDE * 512 + i % SIDE * SIDE;
            __m512 left = _mm512_loadu_ps(own), right = _mm512_loadu_ps(own + 256);
            if (biased_) left = _mm512_add_ps(left, first_), right = _mm512_add_ps(right, second_);
            const __m512i narrow = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left));
            _mm512_mask_storeu_epi16(output_ + i * stride_, some_, narrow);
        }
    }

  private:
    const float* sums_ = nullptr;
    Bfloat16* output_ = nullptr;
    int64_t stride_ = 0;
    bool biased_ = false;
    int64_t left_ = 0;
    __mmask32 some_ = 0;
    __m512 first_ = {}, second_ = {};
};

// Adds the products of a block of rows, of the inputs `from` to `end`, with a packed block of weights, of one tile of outputs or
// `two`, to sums `[2, 2, 16 rows, 16 outputs]`. Meanwhile it finishes `before`.
inline void add_block(const Bfloat16* rows, int64_t inputs, const Bfloat16* packed, bool two, int64_t from, int64_t end,
                      Finish& before, float* sums) {
    const int64_t stride = inputs * sizeof(Bfloat16), each = cuts(BLOCK * DEEP, end - from);
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
        before.advance(each);
    }
    end_tiles(sums);
    asm volatile("" ::: "memory");
}

// Multiplies rows `[rows, inputs]`, a block at least, into the outputs `begin` to `end`, `WIDE` at most, of `output`
// `[rows, outputs]`.
inline void multiply_by_packed_weights(const Weight& weight, int64_t rows, const Bfloat16* numbers, Bfloat16* output,
                                       int64_t begin, int64_t end) {
    alignas(64) float sums[WIDE / BLOCK + 1][4 * SIDE * SIDE];
    const int64_t inputs = weight.inputs;
    const Bfloat16* packed = pack_weights(weight, begin, end);
    Finish before;
    int64_t at = 0;
    for (int64_t b = 0; b < rows; b += BLOCK) {
        const int64_t m = std::min(b, rows - BLOCK);  // the last block may overlap the one before
        for (int64_t k = 0; k < inputs; k += NEAR_INPUTS)
            for (int64_t n = begin; n < end; n += BLOCK) {
                float* own = sums[(at + (n - begin) / BLOCK) % (WIDE / BLOCK + 1)];
                const int64_t last = std::min(k + NEAR_INPUTS, inputs);
                add_block(numbers + m * inputs, inputs, packed + (n - begin) * inputs, end - n > SIDE, k, last, before, own);
                if (last == inputs) before = Finish(own, weight, n, end, output + m * weight.outputs);
            }
        at += cuts(end - begin, BLOCK);
    }
    before.advance(BLOCK);
}

// Whether small products come out right.
inline bool tiles_are_right() {
    constexpr int64_t ROWS_TRIED = 37, INPUTS = 1088, OUTPUTS = 32;
    std::vector<Bfloat16> weight(OUTPUTS * INPUTS), numbers(ROWS_TRIED * INPUTS);
    std::vector<Bfloat16> few(ROWS_TRIED * OUTPUTS), many(ROWS_TRIED * OUTPUTS);
    for (int64_t i = 0; i < OUTPUTS * INPUTS; i++) narrow(static_cast<float>(i * 7 % 5 - 2), &weight[i]);
    for (int64_t i = 0; i < ROWS_TRIED * INPUTS; i++) narrow(static_cast<float>(i * 3 % 7 - 3), &numbers[i]);
    const Weight tried{weight.data(), nullptr, INPUTS, OUTPUTS};
    {
        const OpenTiles open;
        const Bfloat16* packed = pack_rows_for_tiles(ROWS_TRIED, INPUTS, numbers.data());
        multiply_packed_rows(tried, ROWS_TRIED, packed, few.data(), 0, OUTPUTS);
        multiply_by_packed_weights(tried, ROWS_TRIED, numbers.data(), many.data(), 0, OUTPUTS);
    }
    const OpenTiles open(1);
    multiply_row(tried, numbers.data(), few.data(), 0, OUTPUTS);
    for (int64_t m = 0; m < ROWS_TRIED; m++)
        for (int64_t n = 0; n < OUTPUTS; n++) {
            float sum = 0;  // of whole numbers, exact
            for (int64_t k = 0; k < INPUTS; k++) sum += widen(numbers[m * INPUTS + k]) * widen(weight[n * INPUTS + k]);
            const float expected = rounded<Bfloat16>(sum);
            if (widen(few[m * OUTPUTS + n]) != expected || widen(many[m * OUTPUTS + n]) != expected) return false;
        }
    return true;
}

#endif
