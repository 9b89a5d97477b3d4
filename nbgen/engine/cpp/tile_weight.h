// A layer's weight of any kind for products in tiles, and how rows and weights are packed for them.

#pragma once

#include "kind_products.h"
#include "tile_sums.h"

#ifdef TILES

constexpr int64_t BLOCK = 2 * SIDE;  // rows, and outputs, whose sums fill four tiles

// A thread's own buffer for so many numbers, one for each `Use`.
template <int Use>
Bfloat16* room_for_tiles(int64_t size) { return room_of<Bfloat16, std::integral_constant<int, Use>>(cuts(size, STEP<Bfloat16>)); }

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

// The weight of a layer. Unless it is plain, its `kind` writes out patches of it.
struct Weight {
    const Linear<Bfloat16>& layer;
    const KindProducts<Bfloat16>* kind = nullptr;
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
        if (!kind && count % SIDE == 0) return layer.weight + begin * inputs;
        if (kind)
            kind->write(layer, {begin, end, 0, inputs}, room, inputs);
        else
            std::copy_n(layer.weight + begin * inputs, count * inputs, room);
        std::fill(room + count * inputs, room + rows * inputs, Bfloat16{});
        return room;
    }
};

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

#endif
