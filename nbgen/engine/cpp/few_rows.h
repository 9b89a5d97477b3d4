// Products of a few rows with a layer's weights of any kind. Weights are read once, mostly from four places in memory at a time.
//
// Sums are those of `strips.h`, to the bit.

#pragma once

#include <unistd.h>

#include "cut.h"
#include "nibbles.h"
#include "strips.h"

constexpr int TWOS = ROWS + 2;  // the most rows whose sums fit into registers for two outputs

// Whether a loop over so many rows, `TWOS` at most, takes two outputs, which are adjacent, since sums of four would not fit.
constexpr bool by_twos(int64_t rows) { return rows > ROWS; }

// How many bytes ahead of their use weights are prefetched for `R` rows. The more rows there are, the fewer bytes ahead a
// processor gets by itself.
template <int R>
constexpr int64_t DISTANCE = by_twos(R) ? 8192 : 1024 * std::min(R, 3);

// Whether weights of this kind are prefetched. Those of 4 bits are multiplied so slowly where registers are few that the processor
// itself reads far enough ahead, and to prefetch takes a tenth of the time.
template <typename Kind, int R>
constexpr bool PREFETCHES = REGISTERS == 32 || Kind::BITS != 4 || by_twos(R);

// Whether weights of this kind take as long to come from memory as to be multiplied by several rows.
template <typename Kind>
constexpr bool IS_WIDE = Kind::BITS >= 16;

// The most rows that count as few for weights of this kind. Weights of 16 and 8 bits are widened quickly; plain ones take twice the
// room in a cache.
template <typename Kind>
constexpr int FEW = Kind::BITS < 8 ? TWOS : !IS_PLAIN<Kind> ? 18 : REGISTERS == 16 ? 3 * ROWS : TWOS;
template <>  // a panel holds these in half the bytes of float
constexpr int FEW<Integers<Bfloat16>> = 2 * ROWS;
template <typename From>
constexpr int FEW<Multiples<Bfloat16, From>> = 2 * ROWS;

template <typename T>  // rare: to compile functions for more rows would take seconds
constexpr int FEW<Nibbles<T, Scaled>> = ROWS;

// The most rows that one loop multiplies at once by weights of this kind; more go in strips. Where registers are few, two strips
// take up to a third less time than a loop over two outputs.
template <typename Kind>
constexpr int AT_ONCE = REGISTERS == 16 && FEW<Kind> > TWOS ? ROWS : TWOS;

// Bytes of a core's first-level cache.
inline int64_t first_level() {
    int64_t cache = 32768;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const int64_t told = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    if (told > 0) cache = told;
#endif
    return cache;
}

// Whether these functions suit: plain weights need rows that stay in the first-level cache, mostly if by four outputs at once.
template <typename Kind, typename T>
inline bool are_few(const Linear<T>& linear, int64_t rows) {
    if (!rows || rows > FEW<Kind>) return false;
    const int64_t at_once = std::min<int64_t>(rows, AT_ONCE<Kind>), bytes = at_once * linear.inputs * int64_t{sizeof(T)};
    return !IS_PLAIN<Kind> || bytes <= first_level() * (by_twos(at_once) ? 3 : 6) / 4;
}

// Adds one part of the inputs from `k` on to the sums of `R` rows by `N` outputs, which are `apart` from each other.
template <typename Kind, int R, int N, typename T>
[[gnu::always_inline]] inline void add_part(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, int64_t apart,
                                            Layout<T> rows, int64_t k, int64_t part) {
    add_vectors(sums, rows.first + (k + part * STEP<T>) * rows.along, rows.across, [&](int a) {
        const Numbers<T> weights = Kind(linear, n + a * apart).read(k, part);
        if constexpr (IS_WIDE<Kind> && R < ROWS) return held(weights);  // with more rows compilers keep them anyway
        return weights;
    });
}

// Adds the group of inputs from `k` on to those sums, one output after the other. With several outputs at once, what the weights
// of each have in common in a group would take registers from the sums where there are few.
template <typename Kind, int R, int N, typename T>
[[gnu::always_inline]] inline void add_group(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, int64_t apart,
                                             Layout<T> rows, int64_t k) {
#pragma GCC unroll 8
    for (int a = 0; a < N; a++)
#pragma GCC unroll 8
        for (int64_t part = 0; part < GROUP / STEP<T>; part++) {
            const Numbers<T> weights = held(Kind(linear, n + a * apart).read(k, part));
            const T* at = rows.first + (k + part * STEP<T>) * rows.along;
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) sums[i][a] = add_product(sums[i][a], loaded(at + i * rows.across), weights);
        }
}

// Prefetches an output's weights that are stored `ahead` bytes after that of the input `k`.
template <typename Kind, typename T>
[[gnu::always_inline]] inline void fetch_later(const Linear<T>& linear, int64_t n, int64_t k, int64_t ahead) {
    const Kind own(linear, n);
    __builtin_prefetch(own.bytes(k) + ahead, 0, IS_WIDE<Kind> ? NEAR : 2);
    if constexpr (Kind::BITS == 4)
        if (k % (LINE / decltype(own.levels)::BYTES * GROUP) == 0)
            fetch_line(own.levels.at(k / GROUP + ahead * 8 / Kind::BITS / GROUP));
}

// Adds the inputs `begin` to `end` to those sums, one cache line of each output at a time. Prefetches weights `ahead` bytes later.
template <typename Kind, bool FETCHES, int R, int N, typename T>
[[gnu::always_inline]] inline void add_inputs(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, int64_t apart,
                                              Layout<T> rows, int64_t begin, int64_t end, int64_t ahead) {
    constexpr int64_t PARTS = std::max<int64_t>(1, 8 * LINE / Kind::BITS / STEP<T>), WHOLE = PARTS * STEP<T>;
    const int64_t whole = PARTS > 1 ? begin + (end - begin) / WHOLE * WHOLE : end;
    for (int64_t k = begin; k < whole; k += WHOLE) {
        if constexpr (FETCHES && PREFETCHES<Kind, R>)
#pragma GCC unroll 8
            for (int a = 0; a < N; a++) fetch_later<Kind>(linear, n + a * apart, k, ahead);
        if constexpr (REGISTERS == 16 && Kind::BITS == 4) {
#pragma GCC unroll 4
            for (int64_t group = 0; group < WHOLE; group += GROUP)
                add_group<Kind>(sums, linear, n, apart, rows, k + group);
            continue;
        }
        add_part<Kind>(sums, linear, n, apart, rows, k, 0);
        if constexpr (REGISTERS == 16 && R > 1)  // GCC would keep some sums of an unrolled loop in memory
#pragma GCC unroll 1
            for (int part = 1; part < PARTS; part++) add_part<Kind>(sums, linear, n, apart, rows, k, part);
        else if constexpr (PARTS > 1)  // otherwise this would be one more loop, and GCC would optimize its body less
#pragma GCC unroll 16
            for (int part = 1; part < PARTS; part++) add_part<Kind>(sums, linear, n, apart, rows, k, part);
    }
    if constexpr (PARTS > 1)
        for (int64_t part = 0; whole + part * STEP<T> < end; part++)
            add_part<Kind>(sums, linear, n, apart, rows, whole, part);
}

// The same for all inputs.
template <typename Kind, bool FETCHES, int R, int N, typename T>
[[gnu::always_inline]] inline void add_all(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, int64_t apart,
                                           const T* input) {
    add_inputs<Kind, FETCHES>(sums, linear, n, apart, Layout<T>{input, 1, linear.inputs}, 0, linear.inputs, DISTANCE<R>);
}

// Multiplies `R` rows of `input` by four outputs of each piece, from `n` on; pieces are `apart` from each other. Quantized weights
// are dequantized in registers, once for each strip of rows.
template <typename Kind, int R, bool FETCHES, typename T>
inline void read_once(const Linear<T>& linear, const T* input, T* output, int64_t n, int64_t apart) {
    Floats sums[PIECES][R][FEWEST];
#pragma GCC unroll 8
    for (int j = 0; j < FEWEST; j++) {
        Floats own[R][PIECES] = {};
        add_all<Kind, FETCHES>(own, linear, n + j, apart, input);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int a = 0; a < PIECES; a++) sums[a][i][j] = own[i][a];
    }
#pragma GCC unroll 8
    for (int a = 0; a < PIECES; a++) finish(linear, sums[a], output, n + a * apart);
}

// Multiplies `R` rows of `input` by the four outputs from `n` on, two at a time.
template <typename Kind, int R, typename T>
inline void read_twos(const Linear<T>& linear, const T* input, T* output, int64_t n) {
    Floats sums[R][FEWEST];
#pragma GCC unroll 8
    for (int j = 0; j < FEWEST; j += 2) {
        Floats own[R][2] = {};
        add_all<Kind, true>(own, linear, n + j, 1, input);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) sums[i][j] = own[i][0], sums[i][j + 1] = own[i][1];
    }
    finish(linear, sums, output, n);
}

// Multiplies `R` rows by the outputs of a cut, which has `PIECES` pieces unless the rows go `by_twos`.
template <typename Kind, int R, typename T>
void read_cut(const Linear<T>& linear, const T* input, T* output, const Cut& cut) {
    for (int64_t n = cut.begin; n < cut.begin + cut.width; n += FEWEST)
        if constexpr (by_twos(R))
            read_twos<Kind, R>(linear, input, output, n);
        else
            read_once<Kind, R, true>(linear, input, output, n, cut.apart);
}

// `read_cut` for one row, two rows, and so on: in functions of their own, compilers optimize the loops.
template <typename Kind, typename T, std::size_t... R>
constexpr auto for_few(std::index_sequence<R...>) {
    return std::array{&read_cut<Kind, R + 1, T>...};
}

// The fewest rows of a strip where there are several.
constexpr int LEAST = ROWS / 2 + 1;

template <typename Kind, bool FETCHES, typename T, std::size_t... R>
constexpr auto reading_strips(std::index_sequence<R...>) {
    return std::array{&read_once<Kind, R + LEAST, FETCHES, T>...};
}

// Multiplies more than `AT_ONCE` rows by the outputs of a cut, strip by strip while four outputs of each piece stay in the cache.
// Where registers are few, strips take so long that the processor itself reads far enough ahead.
template <typename Kind, typename T>
void read_strips(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut) {
    static constexpr auto all = std::make_index_sequence<ROWS - LEAST + 1>();
    static constexpr auto first = reading_strips<Kind, (REGISTERS > 16), T>(all), others = reading_strips<Kind, false, T>(all);
    for (int64_t n = cut.begin; n < cut.begin + cut.width; n += FEWEST)
        for (int64_t m = 0, some; m < rows; m += some) {
            some = cuts(rows - m, cuts(rows - m, ROWS));
            (m ? others : first)[some - LEAST](linear, input + m * linear.inputs, output + m * linear.outputs, n, cut.apart);
        }
}
