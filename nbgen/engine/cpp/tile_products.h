// Products of rows with a weight of any kind in tiles, where the processor has them. Weights that are not plain are written out
// for this, some outputs at a time.
//
// A few rows are packed, with pairs of inputs of 16 rows side by side, and weights are read as they lie. For many rows it is the
// weights that are packed, and rows that are read as they lie. Both ways a sum takes the inputs in order, 32 at a time, so that
// its bits do not depend on the rows beside it, nor on how the work is cut.

#pragma once

#include "aligned.h"
#include "kind_products.h"
#include "tile_sums.h"

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

// Packs rows `[rows, inputs]` to `[rows / 16, inputs / 32, 16, 16, 2]`.
inline const Bfloat16* pack_rows_for_tiles(int64_t rows, int64_t inputs, const Bfloat16* numbers) {
    Bfloat16* packed = room_for_tiles<0>(cuts(rows, SIDE) * SIDE * inputs);
    for (int64_t m = 0; m < rows; m += SIDE)
        pack_side(numbers + m * inputs, std::min(SIDE, rows - m), inputs, packed + m * inputs, TILE);
    return packed;
}

// What makes outputs of the sums of 16 adjacent ones, or of fewer: their scales and biases, if there are any.
struct Ends {
    bool scaled = false, biased = false;
    __m512 scale = {}, bias = {};

    __m512 operator()(__m512 sums) const {
        if (scaled) sums = _mm512_mul_ps(sums, scale);
        return biased ? _mm512_add_ps(sums, bias) : sums;
    }
};

// The weight of a layer. Unless it is plain, `write` writes out patches of it (`kind_products.h`).
struct Weight {
    const Linear<Bfloat16>& layer;
    decltype(KindProducts<Bfloat16>::write) write = nullptr;
    const int64_t inputs = layer.inputs, outputs = layer.outputs;

    Ends ends_of(int64_t n, int64_t count) const {
        const auto some = static_cast<__mmask16>((1 << count) - 1);
        Ends ends{layer.scales != nullptr, layer.bias != nullptr};
        if (ends.scaled) ends.scale = _mm512_maskz_loadu_ps(some, layer.scales + n);
        if (ends.biased) {
            const __m256i bias = _mm256_maskz_loadu_epi16(some, layer.bias + n);
            ends.bias = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16));
        }
        return ends;
    }

    // The numbers of the outputs `begin` to `end`, where they lie or else in the `room`, which has space for `rows` outputs. There,
    // zeros follow.
    const Bfloat16* numbers(int64_t begin, int64_t end, Bfloat16* room, int64_t rows) const {
        const int64_t count = end - begin;
        if (!write && count % SIDE == 0) return layer.weight + begin * inputs;
        if (write)
            write(layer, {begin, end, 0, inputs}, room, inputs);
        else
            std::copy_n(layer.weight + begin * inputs, count * inputs, room);
        std::fill(room + count * inputs, room + rows * inputs, Bfloat16{});
        return room;
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
        const Ends ends = weight_->ends_of(n, some);
        for (int64_t i = 0; i < count; i++) {
            const __m256i narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(ends(reinterpret_cast<__m512>(rows[i]))));
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
        const Bfloat16* numbers = weight.numbers(n, last, room_for_tiles<2>(BLOCK * inputs), BLOCK);
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

// Makes a row's outputs from `n` on, 16 at most, of their sums.
inline void finish_row(const Weight& weight, const float* sums, int64_t n, int64_t count, Bfloat16* output) {
    const __m256bh narrow = _mm512_cvtneps_pbh(weight.ends_of(n, count)(_mm512_loadu_ps(sums)));
    _mm256_mask_storeu_epi16(output + n, static_cast<__mmask16>((1 << count) - 1), reinterpret_cast<__m256i>(narrow));
}

// Multiplies one row into the outputs `begin` to `end`. Tiles have one column: the row, and so each tile's sums, lie side by side.
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
        }
        STORE_TILE(0, sums, 4);
        asm volatile("" ::: "memory");
        finish_row(weight, sums, n, count, output);
    }
}

// The same for weights that are not plain. They are written out in patches that stay in the first-level cache, each while the one
// before is multiplied: tiles would wait for what was written just now.
inline void multiply_row_by_written(const Weight& weight, const Bfloat16* row, Bfloat16* output, int64_t begin, int64_t end) {
    constexpr int64_t TALL = 4 * SIDE, WIDTH = 128, STRIDE = WIDTH * sizeof(Bfloat16);
    alignas(64) float sums[TALL];
    alignas(64) Bfloat16 rooms[2][TALL * WIDTH] = {};
    const int64_t inputs = weight.inputs, across = cuts(inputs, WIDTH), patches = cuts(end - begin, TALL) * across;
    const auto patch = [&](int64_t i) {
        const int64_t n = begin + i / across * TALL, k = i % across * WIDTH;
        return Patch{n, std::min(end, n + TALL), k, std::min(inputs, k + WIDTH)};
    };
    weight.write(weight.layer, patch(0), rooms[0], WIDTH);
    for (int64_t i = 0; i < patches; i++) {
        const Patch now = patch(i);
        const Bfloat16* numbers = rooms[i % 2];
        if (i + 1 < patches) weight.write(weight.layer, patch(i + 1), rooms[(i + 1) % 2], WIDTH);
        asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
        if (!now.from) begin_tiles(sums, true);
        for (int64_t k = now.from; k < now.to; k += DEEP, numbers += DEEP) {
            LOAD_TILE(6, row + k, 4);
            LOAD_TILE(4, numbers, STRIDE);
            ADD_TILES(0, 4, 6);
            LOAD_TILE(5, numbers + SIDE * WIDTH, STRIDE);
            ADD_TILES(1, 5, 6);
            LOAD_TILE(4, numbers + 2 * SIDE * WIDTH, STRIDE);
            ADD_TILES(2, 4, 6);
            LOAD_TILE(5, numbers + 3 * SIDE * WIDTH, STRIDE);
            ADD_TILES(3, 5, 6);
        }
        if (now.to < inputs) continue;
        STORE_TILE(0, sums, 4);
        STORE_TILE(1, sums + SIDE, 4);
        STORE_TILE(2, sums + 2 * SIDE, 4);
        STORE_TILE(3, sums + 3 * SIDE, 4);
        asm volatile("" ::: "memory");
        for (int64_t n = now.begin; n < now.end; n += SIDE)
            finish_row(weight, sums + (n - now.begin), n, std::min(SIDE, now.end - n), output);
    }
}

// Packs the weights of the outputs `begin` to `end` to `[outputs / 32, inputs / 32, 2, 16, 16, 2]`.
inline const Bfloat16* pack_weights(const Weight& weight, int64_t begin, int64_t end, Bfloat16* packed) {
    for (int64_t n = begin; n < end; n += SIDE) {
        const int64_t last = std::min(end, n + SIDE);
        const Bfloat16* numbers = weight.numbers(n, last, room_for_tiles<2>(SIDE * weight.inputs), SIDE);
        Bfloat16* to = packed + (n - begin) / BLOCK * BLOCK * weight.inputs + (n - begin) % BLOCK / SIDE * TILE;
        pack_side(numbers, SIDE, weight.inputs, to, 2 * TILE);
    }
    return packed;
}

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

// Whether small products come out right.
inline bool tiles_are_right() {
    constexpr int64_t ROWS_TRIED = 37, INPUTS = 1088, OUTPUTS = 32;
    std::vector<Bfloat16> weight(OUTPUTS * INPUTS), numbers(ROWS_TRIED * INPUTS);
    std::vector<Bfloat16> few(ROWS_TRIED * OUTPUTS), many(ROWS_TRIED * OUTPUTS);
    for (int64_t i = 0; i < OUTPUTS * INPUTS; i++) narrow(static_cast<float>(i * 7 % 5 - 2), &weight[i]);
    for (int64_t i = 0; i < ROWS_TRIED * INPUTS; i++) narrow(static_cast<float>(i * 3 % 7 - 3), &numbers[i]);
    Linear<Bfloat16> layer = {};
    layer.weight = weight.data(), layer.inputs = INPUTS, layer.outputs = OUTPUTS;
    const Weight tried{layer};
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
