// Products of rows with a plain weight `[outputs, inputs]`, which is read where it lies in memory, tile by tile.
//
// A result is the same sum in the same order whatever tile it is computed in. A tile's sums stay in registers. The weight is read
// once for all rows of a step; its next panel is prefetched meanwhile.

#pragma once

#include <array>
#include <utility>

#include "cut.h"
#include "weights.h"

constexpr int FEWEST = 4;      // outputs of a tile of many rows
constexpr int MOST = 8;        // outputs of a tile of one or two rows

// What a tile prefetches while it computes. At each of the inputs `from` to `to`, it prefetches the same input of later weights,
// which begin at `first`. If a tile is `PACED`, these inputs are counted on from one output to the next: so it prefetches few lines
// at a time. At every input, it prefetches that input of a `row`, if this is not null.
struct Ahead {
    const char* first;
    int64_t from, to;
    const void* row = nullptr;
};

// How weights or rows lie in memory: the input `k` of the output or row `j` at `k * along + j * across`.
template <typename T>
struct Layout {
    const T* first;
    int64_t along, across;
};

// Adds the products of one vector of inputs to the sums of `R` rows, `across` apart, by `N` outputs. `own(j)` reads an output's
// weights. Where registers are few, nothing is read twice: the shorter side stays in them while the other passes.
template <int R, int N, typename T, typename Own>
[[gnu::always_inline]] inline void add_vectors(Floats (&sums)[R][N], const T* rows, int64_t across, const Own& own) {
    if constexpr (REGISTERS == 16 && R > 1 && R < N) {
        Numbers<T> row[R];
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) row[i] = held(loaded(rows + i * across));
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            const Numbers<T> weights = held(own(j));
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) sums[i][j] = add_product(sums[i][j], row[i], weights);
        }
    } else {
        Numbers<T> weights[N];
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) weights[j] = own(j);
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            Numbers<T> row = loaded(rows + i * across);
            if constexpr (REGISTERS == 16) row = held(row);
#pragma GCC unroll 8
            for (int j = 0; j < N; j++) sums[i][j] = add_product(sums[i][j], row, weights[j]);
        }
    }
}

// Prefetches at once all that `N` outputs prefetch at the inputs `begin` to `end`. Where registers are few, a vector takes part in
// few products, so that checking at each vector whether to prefetch would take a tenth of the time.
template <typename Kind, int N, typename T>
inline void fetch_all(Ahead ahead, int64_t inputs, int64_t begin, int64_t end) {
    const int64_t from = std::max(begin, ahead.from), to = std::min(end, ahead.to);
    for (int j = 0; j < N; j++)
        for (int64_t k = from; k < to; k += 8 * LINE / Kind::BITS) fetch_line(ahead.first + (j * inputs + k) * Kind::BITS / 8);
    if (!ahead.row) return;
    for (int64_t k = begin; k < end; k += LINE / sizeof(T)) fetch_line(static_cast<const T*>(ahead.row) + k);
}

// Adds the products of the inputs `begin` to `end` to the sums of `R` rows by `N` outputs. The weights that it prefetches are of
// the `Kind`, and if `soon`, also those of the next tile. If it `LAYS`, it also writes the weights to `laid`, vector after vector.
template <typename Kind, bool LAYS = false, bool PACED = false, int R, int N, typename T>
[[gnu::always_inline]] inline void add_products(Floats (&sums)[R][N], const T* input, int64_t inputs, Layout<T> weights,
                                                int64_t begin, int64_t end, Ahead ahead, [[maybe_unused]] T* laid = nullptr,
                                                bool soon = false) {
    if constexpr (REGISTERS == 16) fetch_all<Kind, N, T>(ahead, inputs, begin, end);
    for (int64_t k = begin; k < end; k += STEP<T>) {
        if constexpr (REGISTERS > 16) {
            if constexpr (PACED) {
#pragma GCC unroll 8
                for (int j = 0; j < N; j++)
                    if (const int64_t at = j * inputs + k; at >= ahead.from && at < ahead.to)
                        fetch_line(ahead.first + at * Kind::BITS / 8);
            } else if (k >= ahead.from && k < ahead.to)
#pragma GCC unroll 8
                for (int j = 0; j < N; j++) fetch_line(ahead.first + (j * inputs + k) * Kind::BITS / 8);
            if (soon)
#pragma GCC unroll 8
                for (int j = N; j < 2 * N; j++) fetch_soon(weights.first + k * weights.along + j * weights.across);
            if (ahead.row) fetch_line(static_cast<const T*>(ahead.row) + k);
        }
        add_vectors(sums, input + k, inputs, [&](int j) {
            const Numbers<T> own = loaded(weights.first + k * weights.along + j * weights.across);
            if constexpr (LAYS) put(own, laid + k * N + j * STEP<T>);
            return own;
        });
    }
}

// Multiplies `R` rows of `input` by `N` outputs from `n` on. If it `LAYS`, it also writes their weights to `laid`.
template <int R, int N, bool LAYS, bool PACED, typename T>
inline void tile(const Linear<T>& linear, const T* input, T* output, int64_t n, int64_t from, int64_t to, T* laid, bool soon) {
    const Plain<T> own(linear, n), next(linear, n + PANEL);
    Floats sums[R][N] = {};
    add_products<Plain<T>, LAYS, PACED>(sums, input, linear.inputs, Layout<T>{own.first, 1, linear.inputs}, 0, linear.inputs,
                                        Ahead{next.bytes(0), from, to}, laid, soon);
    finish(linear, sums, output, n);
}

// The most rows whose tiles are paced. They take about as long as their weights to come from memory, and a processor drops
// prefetches that come faster. With more rows, or more than `PACED_INPUTS`, they took no less time.
constexpr int64_t PACED_ROWS = REGISTERS > 16 ? 3 * ROWS : 0, PACED_INPUTS = 2048;

// Multiplies `R` of all `rows`, from `m` on, by the outputs `begin` to `end`. Each row prefetches its part of the next panel, and
// the first rows anew what is left of their own.
template <int R, bool LAYS, bool PACED, typename T>
void strip(const Linear<T>& linear, T* laid, int64_t rows, int64_t m, const T* input, T* output, int64_t begin, int64_t end) {
    constexpr int N = !LAYS && R <= REGISTERS / 16 ? MOST : FEWEST;
    const int64_t inputs = PACED ? N * linear.inputs : linear.inputs;
    const int64_t from = m * inputs / rows, to = (m + R) * inputs / rows;
    input += m * linear.inputs;
    output += m * linear.outputs;
    int64_t n = begin;
    for (; n + N <= end; n += N)
        tile<R, N, LAYS, PACED>(linear, input, output, n, from, to, LAYS ? laid + (n - begin) * linear.inputs : nullptr, m == 0);
    for (; n < end; n += FEWEST) tile<R, FEWEST, false, PACED>(linear, input, output, n, from, to, laid, m == 0);
}

// The functions for strips of one row, two rows, and so on.
template <bool LAYS, bool PACED, typename T, std::size_t... R>
constexpr auto strips_of(std::index_sequence<R...>) {
    return std::array{&strip<R + 1, LAYS, PACED, T>...};
}
