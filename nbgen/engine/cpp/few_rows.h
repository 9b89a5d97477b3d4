// A few rows by a layer's weights, whatever they are kept as, which are read once as they lie in memory.
//
// Sums are those of `strips.h`, to the bit.

#pragma once

#include <unistd.h>

#include "strips.h"

constexpr int64_t LINE = 64;        // bytes of memory that come together
constexpr int64_t DISTANCE = 8192;  // bytes ahead of their products that numbers are fetched
constexpr int FURTHER = 8;          // outputs ahead that rounded weights are fetched

// Rows that are few for weights of this kind: those of 16 and 8 bits are widened quickly.
template <typename Kind>
constexpr int FEW = !IS_PLAIN<Kind> && Kind::BITS >= 8 ? 3 * ROWS : ROWS + 2;
template <>  // which a panel holds in half the bytes of float
constexpr int FEW<Integers<Bfloat16>> = 2 * ROWS;

// Bytes of rows that stay in a core's first-level cache while weights go by.
inline int64_t bytes_near() {
    int64_t cache = 32768;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const int64_t told = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    if (told > 0) cache = told;
#endif
    return cache * 3 / 4;
}

// Whether rows are read as here. Weights as they are meet all rows output by output, at most two at a time: rows too long to
// stay near for that are shared by four outputs elsewhere.
template <typename Kind, typename T>
inline bool are_few(const Linear<T>& linear, int64_t rows) {
    if (rows > FEW<Kind>) return false;
    return !IS_PLAIN<Kind> || rows * linear.inputs * static_cast<int64_t>(sizeof(T)) <= bytes_near();
}

// To the sums of `R` rows by the `N` outputs from `n` on what one part from the input `k` on adds.
template <typename Kind, int R, int N, typename T>
[[gnu::always_inline]] inline void add_part(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, const T* input,
                                            int64_t k, int64_t part) {
    const T* at = input + k + part * STEP<T>;
    Numbers<T> weights[N];
#pragma GCC unroll 8
    for (int a = 0; a < N; a++) weights[a] = Kind(linear, n + a).read(k, part);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int a = 0; a < N; a++) sums[i][a] = add_product(sums[i][a], at + i * linear.inputs, weights[a]);
}

// What is needed later is fetched, while few rows are at the input `k` of the output `n`.
template <typename Kind, typename T>
[[gnu::always_inline]] inline void fetch_later(const Linear<T>& linear, int64_t n, int64_t k) {
    if constexpr (IS_PLAIN<Kind>) {
        fetch_line(Kind(linear, n).bytes(k) + DISTANCE);
    } else {
        const Kind later(linear, n + FURTHER);
        fetch_line(later.bytes(k));
        if constexpr (Kind::BITS == 4)
            if (k % (LINE / decltype(later.levels)::BYTES * GROUP) == 0) fetch_line(later.levels.at(k / GROUP));
    }
}

// The same for all inputs, a line of memory of each output at a time.
template <typename Kind, bool FETCHES, int R, int N, typename T>
[[gnu::always_inline]] inline void add_all(Floats (&sums)[R][N], const Linear<T>& linear, int64_t n, const T* input) {
    constexpr int64_t PARTS = std::max<int64_t>(1, 8 * LINE / Kind::BITS / STEP<T>), WHOLE = PARTS * STEP<T>;
    const int64_t whole = PARTS > 1 ? linear.inputs / WHOLE * WHOLE : linear.inputs;
    for (int64_t k = 0; k < whole; k += WHOLE) {
        if constexpr (FETCHES)
#pragma GCC unroll 8
            for (int a = 0; a < N; a++) fetch_later<Kind>(linear, n + a, k);
        add_part<Kind>(sums, linear, n, input, k, 0);
        if constexpr (PARTS > 1)  // or else this is one loop more, whose body GCC takes to be worth less
#pragma GCC unroll 16
            for (int part = 1; part < PARTS; part++) add_part<Kind>(sums, linear, n, input, k, part);
    }
    if constexpr (PARTS > 1)
        for (int64_t part = 0; whole + part * STEP<T> < linear.inputs; part++)
            add_part<Kind>(sums, linear, n, input, whole, part);
}

// `R` rows of `input` by the outputs from `n` on. Where numbers are read for this alone they come from memory in the order in
// which they lie there, which is how processors fetch ahead best. Others are made in registers, once for each strip of rows.
template <typename Kind, int R, bool FETCHES, typename T>
inline void read_once(const Linear<T>& linear, const T* input, T* output, int64_t n) {
    if constexpr (!IS_PLAIN<Kind> && R > ROWS + 2) {
        constexpr int STRIPS = (R + ROWS - 1) / ROWS, FIRST = (R + STRIPS - 1) / STRIPS;
        read_once<Kind, FIRST, FETCHES>(linear, input, output, n);
        read_once<Kind, R - FIRST, false>(linear, input + FIRST * linear.inputs, output + FIRST * linear.outputs, n);
    } else {
        constexpr int N = R > ROWS ? 2 : IS_PLAIN<Kind> ? 1 : FEWEST;
        Floats sums[R][FEWEST];
#pragma GCC unroll 8
        for (int j = 0; j < FEWEST; j += N) {
            Floats own[R][N] = {};
            add_all<Kind, FETCHES>(own, linear, n + j, input);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++)
#pragma GCC unroll 8
                for (int a = 0; a < N; a++) sums[i][j + a] = own[i][a];
        }
        finish(linear, sums, output, n);
    }
}

// The same for the outputs `begin` to `end`.
template <typename Kind, int R, typename T>
void read_all_once(const Linear<T>& linear, const T* input, T* output, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += FEWEST) read_once<Kind, R, true>(linear, input, output, n);
}

// The same for one row, two rows, and so on: functions of their own, whose loops compilers take to be worth their while.
template <typename Kind, typename T, std::size_t... R>
constexpr auto for_few(std::index_sequence<R...>) {
    return std::array{&read_all_once<Kind, R + 1, T>...};
}
