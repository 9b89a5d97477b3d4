// Products of bfloat16 in a processor's tile registers (Intel AMX): 16 outputs by 16 rows by 32 inputs in one instruction.
//
// Weights are read as they lie in memory; rows are packed once for all outputs, with pairs of inputs of 16 rows side by side. A sum
// takes the inputs in order, 32 at a time, whatever rows are computed beside it and however the work is cut.

#pragma once

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "packed.h"

// Emulates the instructions, so that all other code can be tested on machines without them. As with the instructions, a thread that
// has not configured its tiles ends the process.
#if defined(EMULATED_TILES) && defined(__AVX512BF16__)
#define TILES
struct EmulatedTile {
    uint32_t words[16][16];
};
inline bool& are_configured() {
    thread_local bool configured = false;
    return configured;
}
inline EmulatedTile* emulated() {
    thread_local EmulatedTile tiles[8];
    if (!are_configured()) std::abort();
    return tiles;
}
inline void emulated_load(int tile, const void* from, int64_t stride) {
    for (int i = 0; i < 16; i++) std::memcpy(emulated()[tile].words[i], static_cast<const char*>(from) + i * stride, 64);
}
inline void emulated_store(int tile, void* to, int64_t stride) {
    for (int i = 0; i < 16; i++) std::memcpy(static_cast<char*>(to) + i * stride, emulated()[tile].words[i], 64);
}
// As the instruction is documented: of its 32 inputs the even ones are summed, and the odd ones, each by fused multiplications from
// zero on. Numbers too small to be normal count as zero, before and after.
inline float normal(float number) { return std::fabs(number) < FLT_MIN ? std::copysign(0.0f, number) : number; }
inline float number_of(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return normal(number);
}
inline void emulated_multiply(int to, int left, int right) {
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float even = 0, odd = 0;
            for (int k = 0; k < 16; k++) {
                const uint32_t a = emulated()[left].words[i][k], b = emulated()[right].words[k][j];
                even = normal(std::fma(number_of(a << 16), number_of(b << 16), even));
                odd = normal(std::fma(number_of(a & 0xffff0000u), number_of(b & 0xffff0000u), odd));
            }
            const float sum = normal(number_of(emulated()[to].words[i][j]) + normal(even + odd));
            std::memcpy(&emulated()[to].words[i][j], &sum, sizeof sum);
        }
}
#define CONFIGURE_TILES(config) ((void)(config), are_configured() = true)
#define RELEASE_TILES() (are_configured() = false)
#define CLEAR_TILE(tile) (emulated()[tile] = {})
#define LOAD_TILE(tile, from, stride) emulated_load(tile, from, stride)
#define STORE_TILE(tile, to, stride) emulated_store(tile, to, stride)
#define ADD_TILES(to, left, right) emulated_multiply(to, left, right)
inline bool ask_for_tiles() { return true; }
#elif defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define TILES
#include <sys/syscall.h>
#include <unistd.h>
#define CONFIGURE_TILES _tile_loadconfig
#define RELEASE_TILES _tile_release
#define CLEAR_TILE _tile_zero
#define LOAD_TILE _tile_loadd
#define STORE_TILE _tile_stored
#define ADD_TILES _tile_dpbf16ps
// The system keeps tiles for a process once it has asked (ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA).
inline bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#endif

#ifdef TILES

constexpr int64_t SIDE = 16;   // outputs, and rows
constexpr int64_t DEEP = 32;   // inputs
constexpr int64_t PASS = 512;  // inputs whose weights, for two tiles of outputs, stay in the first-level cache while all rows pass

// Whether products may use tiles, as `use_tiles` has found.
inline bool& tiles_are_used() {
    static bool used = false;
    return used;
}

// Configures a thread's tiles, all of 16 rows of 64 bytes, for as long as this object lives.
class OpenTiles {
  public:
    OpenTiles() {
        alignas(64) static const struct {
            uint8_t palette = 1, start = 0, unused[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        CONFIGURE_TILES(&config);
    }
    ~OpenTiles() { RELEASE_TILES(); }
    OpenTiles(const OpenTiles&) = delete;
};

// Packs rows `[rows, inputs]` as the right side of products, `[rows / COLUMNS, inputs / 2, COLUMNS, 2]`. The last row is repeated
// to fill a tile.
inline const Bfloat16* pack_rows_for_tiles(int64_t rows, int64_t inputs, const Bfloat16* numbers) {
    thread_local std::vector<Bfloat16> packed;
    const int64_t size = padded(rows) * inputs;
    if (static_cast<int64_t>(packed.size()) < size) packed.resize(size);
    for (int64_t n = 0; n < rows; n += LANES) {
        const Bfloat16* columns[LANES];
        for (int64_t l = 0; l < LANES; l++) columns[l] = numbers + std::min(n + l, rows - 1) * inputs;
        pack_columns(columns, inputs, n, packed.data());
    }
    return packed.data();
}

// The outputs of one tile or two by the rows of one tile or two.
struct TileBlock {
    const Bfloat16 *weights, *rows;
    int64_t inputs;
    bool two_outputs, two_rows;

    // Adds the products of the inputs `from` to `end` to the `sums` of four tiles. Meanwhile it prefetches, of the outputs that
    // come `ahead` outputs later, the weights of the inputs `fetch` to `fetched`.
    void add(int64_t from, int64_t end, float* sums, int64_t ahead, int64_t fetch, int64_t fetched) const {
        const int64_t stride = inputs * sizeof(Bfloat16), packed_stride = COLUMNS * 2 * sizeof(Bfloat16);
        if (from) {
            LOAD_TILE(0, sums, 64);
            LOAD_TILE(1, sums + 256, 64);
            LOAD_TILE(2, sums + 512, 64);
            LOAD_TILE(3, sums + 768, 64);
        } else {
            CLEAR_TILE(0);
            CLEAR_TILE(1);
            CLEAR_TILE(2);
            CLEAR_TILE(3);
        }
        for (int64_t k = from; k < end; k += DEEP) {
            if (k >= fetch && k < fetched)
                for (int64_t n = ahead; n < ahead + (two_outputs ? 2 : 1) * SIDE; n++)
                    fetch_line(weights + n * inputs + k);
            const Bfloat16* right = rows + k * COLUMNS;
            LOAD_TILE(4, weights + k, stride);
            LOAD_TILE(6, right, packed_stride);
            ADD_TILES(0, 4, 6);
            if (two_rows) {
                LOAD_TILE(7, right + SIDE * 2, packed_stride);
                ADD_TILES(1, 4, 7);
            }
            if (two_outputs) {
                LOAD_TILE(5, weights + SIDE * inputs + k, stride);
                ADD_TILES(2, 5, 6);
                if (two_rows) ADD_TILES(3, 5, 7);
            }
        }
        STORE_TILE(0, sums, 64);
        STORE_TILE(1, sums + 256, 64);
        STORE_TILE(2, sums + 512, 64);
        STORE_TILE(3, sums + 768, 64);
    }
};

// Writes one tile of sums `[16 outputs, 16 rows]` to `count` rows of the output, `stride` apart. `bias` may be null.
inline void finish_tile(const float* sums, const Bfloat16* bias, int64_t count, Bfloat16* output, int64_t stride) {
    Words rows[LANES];
    std::memcpy(rows, sums, sizeof rows);
    transpose(rows);
    __m512 more = _mm512_setzero_ps();
    if (bias) {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bias)));
        more = _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
    for (int64_t i = 0; i < count; i++) {
        __m512 row = reinterpret_cast<__m512>(rows[i]);
        if (bias) row = _mm512_add_ps(row, more);
        const __m256bh narrow = _mm512_cvtneps_pbh(row);
        std::memcpy(output + i * stride, &narrow, sizeof narrow);
    }
}

// A weight `[outputs, inputs]`; `bias` may be null.
struct Weight {
    const Bfloat16 *numbers, *bias;
    int64_t inputs, outputs;
};

// Multiplies `packed` rows into the outputs `begin` to `end`, two tiles at most, of `output` `[rows, outputs]`.
inline void multiply_in_tiles(const Weight& weight, int64_t rows, const Bfloat16* packed, Bfloat16* output, int64_t begin,
                              int64_t end) {
    constexpr int64_t BLOCK = 2 * SIDE;
    thread_local std::vector<float> room;
    const int64_t inputs = weight.inputs, outputs = weight.outputs;
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK, chunk = blocks > 1 ? PASS : inputs;
    if (static_cast<int64_t>(room.size()) < blocks * 1024) room.resize(blocks * 1024);
    asm volatile("" ::: "memory");  // compilers do not know what tiles read
    for (int64_t k = 0; k < inputs; k += chunk)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t m = b * BLOCK, size = std::min(chunk, inputs - k);
            const TileBlock block{weight.numbers + begin * inputs, packed + m / COLUMNS * COLUMNS * inputs + m % COLUMNS * 2, inputs,
                                  end - begin > SIDE, rows - m > SIDE};
            block.add(k, k + size, room.data() + b * 1024, BLOCK, k + b * size / blocks, k + (b + 1) * size / blocks);
        }
    asm volatile("" ::: "memory");
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t n = begin; n < end; n += SIDE)
            for (int64_t m = b * BLOCK; m < std::min(rows, (b + 1) * BLOCK); m += SIDE) {
                const float* sums = room.data() + b * 1024 + (n > begin) * 512 + (m > b * BLOCK) * 256;
                finish_tile(sums, weight.bias ? weight.bias + n : nullptr, std::min(SIDE, rows - m), output + m * outputs + n, outputs);
            }
}

// Whether a small product comes out right.
inline bool tiles_are_right() {
    constexpr int64_t ROWS_TRIED = 37, INPUTS = 1088, OUTPUTS = 32;
    std::vector<Bfloat16> weight(OUTPUTS * INPUTS), numbers(ROWS_TRIED * INPUTS), output(ROWS_TRIED * OUTPUTS);
    for (int64_t i = 0; i < OUTPUTS * INPUTS; i++) narrow(static_cast<float>(i * 7 % 5 - 2), &weight[i]);
    for (int64_t i = 0; i < ROWS_TRIED * INPUTS; i++) narrow(static_cast<float>(i * 3 % 7 - 3), &numbers[i]);
    const OpenTiles open;
    const Bfloat16* packed = pack_rows_for_tiles(ROWS_TRIED, INPUTS, numbers.data());
    multiply_in_tiles({weight.data(), nullptr, INPUTS, OUTPUTS}, ROWS_TRIED, packed, output.data(), 0, OUTPUTS);
    for (int64_t m = 0; m < ROWS_TRIED; m++)
        for (int64_t n = 0; n < OUTPUTS; n++) {
            float sum = 0;  // of whole numbers, exact
            for (int64_t k = 0; k < INPUTS; k++) sum += widen(numbers[m * INPUTS + k]) * widen(weight[n * INPUTS + k]);
            if (widen(output[m * OUTPUTS + n]) != rounded<Bfloat16>(sum)) return false;
        }
    return true;
}

#endif
