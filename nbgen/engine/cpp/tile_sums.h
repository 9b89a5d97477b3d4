// Products of a strip of rows with a packed operand: in tiles if the processor has them, and in its vectors elsewhere.

#pragma once

#include "cut.h"
#include "packed.h"
#include "tiles.h"

#ifdef TILES
constexpr int64_t STRIP = SIDE;  // rows at most
#else
constexpr int64_t STRIP = ROWS;
#endif

// Whether operands of this type are multiplied in tiles.
template <typename N>
bool go_in_tiles() {
#ifdef TILES
    return std::is_same_v<N, Bfloat16> && tiles_are_used();
#else
    return false;
#endif
}

// The most rows of a strip.
template <typename N>
int64_t strip_of() { return go_in_tiles<N>() ? STRIP : ROWS; }

// The depth that an operand is padded to with zeros.
template <typename N>
int64_t depth_of(int64_t depth) {
#ifdef TILES
    if (go_in_tiles<N>()) return cuts(depth, DEEP) * DEEP;
#endif
    return depth;
}

#ifdef TILES

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

// Multiplies a tile of rows `[16, depth]` by one of `count` packed columns, and writes each column's sums side by side, `COLUMNS`
// apart.
inline void multiply_turned(const Bfloat16* rows, const Bfloat16* packed, int64_t depth, int64_t count, float* sums) {
    alignas(64) float own[SIDE * SIDE];
    asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
    CLEAR_TILE(0);
    for (int64_t k = 0; k < depth; k += DEEP) {
        LOAD_TILE(4, rows + k, depth * sizeof(Bfloat16));
        LOAD_TILE(6, packed + k * SIDE, 64);
        ADD_TILES(0, 4, 6);
    }
    STORE_TILE(0, own, 64);
    asm volatile("" ::: "memory");
    Words columns[LANES];
    std::memcpy(columns, own, sizeof columns);
    transpose(columns);
    for (int64_t i = 0; i < count; i++) put(columns[i], sums + i * COLUMNS);
}

// Multiplies the columns `n` to `n + COLUMNS`. Sums have room for `STRIP` rows.
template <bool NEW>
void add_columns_in_tiles(const Bfloat16* rows, const Bfloat16* packed, int64_t depth, float* sums, int64_t width) {
    const int64_t stride = depth * sizeof(Bfloat16), across = width * sizeof(float), down = 2 * COLUMNS * sizeof(Bfloat16);
    if constexpr (NEW) {
        CLEAR_TILE(0);
        CLEAR_TILE(1);
        CLEAR_TILE(2);
        CLEAR_TILE(3);
    } else {
        LOAD_TILE(0, sums, across);
        LOAD_TILE(1, sums + SIDE, across);
        LOAD_TILE(2, sums + 2 * SIDE, across);
        LOAD_TILE(3, sums + 3 * SIDE, across);
    }
    for (int64_t k = 0; k < depth; k += DEEP) {
        const Bfloat16* right = packed + k * COLUMNS;
        LOAD_TILE(4, rows + k, stride);
        LOAD_TILE(5, right, down);
        ADD_TILES(0, 4, 5);
        LOAD_TILE(6, right + DEEP, down);
        ADD_TILES(1, 4, 6);
        LOAD_TILE(7, right + 2 * DEEP, down);
        ADD_TILES(2, 4, 7);
        LOAD_TILE(5, right + 3 * DEEP, down);
        ADD_TILES(3, 4, 5);
    }
    STORE_TILE(0, sums, across);
    STORE_TILE(1, sums + SIDE, across);
    STORE_TILE(2, sums + 2 * SIDE, across);
    STORE_TILE(3, sums + 3 * SIDE, across);
}

#endif

// `add_packed` for a strip of `count` rows. In tiles, numbers beyond these rows are read, and sums beyond them written.
template <bool NEW, typename N>
void add_strip(const N* rows, int64_t count, const N* packed, int64_t depth, float* sums, int64_t width) {
#ifdef TILES
    if constexpr (std::is_same_v<N, Bfloat16>)
        if (tiles_are_used()) {
            asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
            for (int64_t n = 0; n < width; n += COLUMNS)
                add_columns_in_tiles<NEW>(rows, packed + n * depth, depth, sums + n, width);
            asm volatile("" ::: "memory");
            return;
        }
#endif
    add_packed<NEW>(rows, count, packed, depth, sums, width);
}
