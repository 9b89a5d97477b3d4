// A processor's tile registers (Intel AMX), and one instruction's product of bfloat16 in them: 16 by 16 sums of 32 products each.
//
// Products here use four of the eight registers: two of sums, one for each side. While another thread runs on the same core, which
// a virtual machine neither sees nor can prevent, a core has hardly any registers to spare for loads to run ahead in. Two by two
// tiles in all eight registers then take 28 ns for each product, and two by one in four 14, with half as many loads again; alone on
// a core both take 7.

#pragma once

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <cstdint>

// Emulates the instructions, so that all other code can be tested on machines without them. As with the instructions, a thread that
// has not configured its tiles ends the process.
#if defined(EMULATED_TILES) && defined(__AVX512BF16__)
#define TILES
struct EmulatedTile {
    uint32_t words[16][16];
};
// How a thread's tiles are configured: `palette` is 0 if they are not.
struct TileConfig {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
inline TileConfig& configured() {
    thread_local TileConfig config = {};
    return config;
}
inline EmulatedTile* emulated() {
    thread_local EmulatedTile tiles[8];
    if (!configured().palette) std::abort();
    return tiles;
}
inline void emulated_load(int tile, const void* from, int64_t stride) {
    emulated()[tile] = {};
    for (int i = 0; i < 16; i++)
        std::memcpy(emulated()[tile].words[i], static_cast<const char*>(from) + i * stride, configured().bytes[tile]);
}
inline void emulated_store(int tile, void* to, int64_t stride) {
    for (int i = 0; i < 16; i++)
        std::memcpy(static_cast<char*>(to) + i * stride, emulated()[tile].words[i], configured().bytes[tile]);
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
#define CONFIGURE_TILES(config) std::memcpy(&configured(), config, sizeof(TileConfig))
#define RELEASE_TILES() (configured().palette = 0)
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

constexpr int64_t SIDE = 16;            // rows of a tile, and words of each
constexpr int64_t DEEP = 32;            // numbers of a row
constexpr int64_t TILE = SIDE * DEEP;   // numbers

// Whether products may use tiles, as `use_tiles` has found.
inline bool& tiles_are_used() {
    static bool used = false;
    return used;
}

// Configures a thread's tiles, all of 16 rows, for as long as this object lives. The sums (0 to 3) and the right sides of products
// (6 and 7) have so many `columns` of 4 bytes, and the left sides (4 and 5) have 16.
class OpenTiles {
  public:
    explicit OpenTiles(uint16_t columns = SIDE) {
        const auto side = static_cast<uint16_t>(4 * columns);
        alignas(64) const struct {
            uint8_t palette, start, unused[14];
            uint16_t bytes[16];
            uint8_t rows[16];
        } config = {1, 0, {}, {side, side, side, side, 64, 64, side, side}, {16, 16, 16, 16, 16, 16, 16, 16}};
        CONFIGURE_TILES(&config);
    }
    ~OpenTiles() { RELEASE_TILES(); }
    OpenTiles(const OpenTiles&) = delete;
};

#endif
