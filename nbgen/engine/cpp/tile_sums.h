// Products of a strip of rows with a packed operand: in tiles if the processor has them, and in its vectors elsewhere.

#pragma once

#include "cut.h"
#include "packed.h"
#include "tiles.h"

#ifdef TILES
constexpr int64_t STRIP = 2 * SIDE;  // rows at most
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

// Packs a tile of `count` rows, `stride` apart, as the right side of products: `[16, 16, 2]`. The last row is repeated to fill it.
inline void pack_tile(const Bfloat16* rows, int64_t stride, Bfloat16* packed, int64_t count = SIDE) {
    Words words[LANES];
#pragma GCC unroll 16
    for (int64_t l = 0; l < LANES; l++) words[l] = words_at(rows + std::min(l, count - 1) * stride);
    transpose(words);
#pragma GCC unroll 16
    for (int64_t l = 0; l < LANES; l++) put(words[l], packed + l * DEEP);
}

// Packs rows `[count, inputs]`, one side of tiles at most: one tile for each 32 inputs.
inline void pack_side(const Bfloat16* rows, int64_t count, int64_t inputs, Bfloat16* packed) {
    for (int64_t k = 0; k < inputs; k += DEEP, packed += TILE) pack_tile(rows + k, inputs, packed, count);
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

// Multiplies one tile of rows, or `two`, by one of columns. Sums have room for whole tiles.
template <bool NEW>
void add_column_of_tiles(const Bfloat16* rows, bool two, const Bfloat16* packed, int64_t depth, float* sums, int64_t width) {
    const int64_t stride = depth * sizeof(Bfloat16), across = width * sizeof(float), down = 2 * COLUMNS * sizeof(Bfloat16);
    if constexpr (NEW) {
        CLEAR_TILE(0);
        CLEAR_TILE(1);
    } else {
        LOAD_TILE(0, sums, across);
        if (two) LOAD_TILE(1, sums + SIDE * width, across);
    }
    for (int64_t k = 0; k < depth; k += DEEP) {
        LOAD_TILE(6, packed + k * COLUMNS, down);
        LOAD_TILE(4, rows + k, stride);
        ADD_TILES(0, 4, 6);
        if (!two) continue;
        LOAD_TILE(4, rows + SIDE * depth + k, stride);
        ADD_TILES(1, 4, 6);
    }
    STORE_TILE(0, sums, across);
    if (two) STORE_TILE(1, sums + SIDE * width, across);
}

#endif

// `add_packed` for a strip of `count` rows. In tiles, numbers beyond these rows are read, and sums beyond them written, up to a
// whole tile.
template <bool NEW, typename N>
void add_strip(const N* rows, int64_t count, const N* packed, int64_t depth, float* sums, int64_t width) {
#ifdef TILES
    if constexpr (std::is_same_v<N, Bfloat16>)
        if (tiles_are_used()) {
            asm volatile("" ::: "memory");  // compilers do not know what tiles read and write
            for (int64_t n = 0; n < width; n += SIDE) {
                const Bfloat16* own = packed + n / COLUMNS * COLUMNS * depth + n % COLUMNS * 2;
                add_column_of_tiles<NEW>(rows, count > SIDE, own, depth, sums + n, width);
            }
            asm volatile("" ::: "memory");
            return;
        }
#endif
    add_packed<NEW>(rows, count, packed, depth, sums, width);
}
