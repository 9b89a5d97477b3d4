// A layer's weight of any kind for products in tiles, and how rows and weights are packed for them.

#pragma once

#include "kind_products.h"
#include "tile_ends.h"
#include "tile_sums.h"

#ifdef TILES

constexpr int64_t BLOCK = 2 * SIDE;  // rows, or outputs, that are multiplied by one tile after the other

// A thread's own buffer for so many numbers, one for each `Use`.
template <int Use>
Bfloat16* room_for_tiles(int64_t size) { return room_of<Bfloat16, std::integral_constant<int, Use>>(cuts(size, STEP<Bfloat16>)); }

// Packs rows `[rows, inputs]` to `[rows / 16, inputs / 32, 16, 16, 2]`, as right sides of products.
inline const Bfloat16* pack_rows_for_tiles(int64_t rows, int64_t inputs, const Bfloat16* numbers) {
    Bfloat16* packed = room_for_tiles<0>(cuts(rows, SIDE) * SIDE * inputs);
    for (int64_t m = 0; m < rows; m += SIDE)
        pack_side(numbers + m * inputs, std::min(SIDE, rows - m), inputs, packed + m * inputs);
    return packed;
}

// Lays out rows `[rows, inputs]` as left sides of products, `[rows / 32, inputs / 32, 2, 16, 32]`: of these blocks, the one that
// begins at row `m`. Rows beyond the last repeat it.
inline void lay_block(int64_t rows, int64_t inputs, const Bfloat16* numbers, int64_t m, Bfloat16* laid) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const Bfloat16* from = numbers + std::min(m + i, rows - 1) * inputs;
        Bfloat16* to = laid + m * inputs + i * DEEP;
        for (int64_t k = 0; k < inputs; k += DEEP, to += 2 * TILE) put(words_at(from + k), to);
    }
}

inline const Bfloat16* lay_rows(int64_t rows, int64_t inputs, const Bfloat16* numbers) {
    Bfloat16* laid = room_for_tiles<0>(cuts(rows, BLOCK) * BLOCK * inputs);
    for (int64_t m = 0; m < rows; m += BLOCK) lay_block(rows, inputs, numbers, m, laid);
    return laid;
}

// The weight of a layer. Unless it is plain, its `kind` writes it out.
struct Weight {
    const Linear<Bfloat16>& layer;
    const KindProducts<Bfloat16>* kind = nullptr;
    const int64_t inputs = layer.inputs, outputs = layer.outputs;

    // The numbers of the outputs `begin` to `end`, where they lie or else in the `room`, which has space for `rows` outputs. There,
    // zeros follow.
    const Bfloat16* numbers(int64_t begin, int64_t end, Bfloat16* room, int64_t rows) const {
        const int64_t count = end - begin;
        if (!kind && count % SIDE == 0) return layer.weight + begin * inputs;
        if (kind)
            kind->write(layer, begin, end, room);
        else
            std::copy_n(layer.weight + begin * inputs, count * inputs, room);
        std::fill(room + count * inputs, room + rows * inputs, Bfloat16{});
        return room;
    }
};

// Packs the weights of the outputs `begin` to `end` to `[outputs / 16, inputs / 32, 16, 16, 2]`.
inline void pack_weights(const Weight& weight, int64_t begin, int64_t end, Bfloat16* packed) {
    for (int64_t n = begin; n < end; n += SIDE) {
        const int64_t last = std::min(end, n + SIDE);
        const Bfloat16* numbers = weight.numbers(n, last, room_for_tiles<2>(SIDE * weight.inputs), SIDE);
        for (int64_t k = 0; k < weight.inputs; k += DEEP, packed += TILE) {
            if (!weight.kind) fetch_ahead(numbers, SIDE, weight.inputs, k);
            pack_tile(numbers + k, weight.inputs, packed);
        }
    }
}

// Sums of two tiles, as they are before products are added: zero if they are `fresh`.
inline void begin_tiles(const float* sums, bool fresh) {
    if (fresh) {
        CLEAR_TILE(0);
        CLEAR_TILE(1);
    } else {
        LOAD_TILE(0, sums, 64);
        LOAD_TILE(1, sums + SIDE * SIDE, 64);
    }
}

inline void end_tiles(float* sums) {
    STORE_TILE(0, sums, 64);
    STORE_TILE(1, sums + SIDE * SIDE, 64);
}

#endif
