// Products of rows with a panel of weights of any kind, which are laid out first for many rows.
//
// A laid-out panel stays in the second-level cache, tile after tile, on whole cache lines. Long rows are taken in chunks, so that a
// chunk's inputs and a tile's weights stay in the first-level cache. Sums equal those of `strips.h` to the bit.

#pragma once

#include "aligned.h"
#include "nibbles.h"
#include "strips.h"

constexpr int64_t MANY = 8 * ROWS;  // for more rows than these, it always pays to lay weights out

template <typename T>
constexpr int64_t CHUNK = 2048 / sizeof(T);  // inputs of a long row at a time

constexpr int64_t STAYING = 1 << 20;  // bytes of rows that stay in the second-level cache while a panel is multiplied by them

// A thread's own buffer of at least so many vectors, one for each type `For`.
template <typename T, typename For = T>
T* room_of(int64_t vectors) {
    thread_local Aligned<T> numbers;
    return at_least(numbers, vectors * STEP<T>);
}

// Writes the weights of the outputs `begin` to `end` to `laid` `[outputs / FEWEST, inputs / STEP, FEWEST, STEP]`.
template <typename Kind, typename T>
void lay_out(const Linear<T>& linear, int64_t begin, int64_t end, T* laid) {
    const int64_t parts = linear.inputs / STEP<T>;
    for (int64_t n = begin; n < end; n++) {
        const Kind from(linear, n);
        T* to = laid + ((n - begin) / FEWEST * FEWEST * parts + (n - begin) % FEWEST) * STEP<T>;
        for (int64_t k = 0; k < linear.inputs; k += GROUP)
#pragma GCC unroll 8
            for (int64_t part = 0; part < GROUP / STEP<T>; part++)
                if (k + part * STEP<T> < linear.inputs) put(from.read(k, part), to + (k + part * STEP<T>) * FEWEST);
    }
}

// A kind with the same layout in memory. Code that only prefetches weights is compiled for that one, once for several kinds.
template <typename Kind>
struct Lying {
    using As = Kind;
};
template <typename T, typename From>
struct Lying<Multiples<T, From>> : Lying<Integers<T>> {};
template <typename T>
struct Lying<Nibbles<T, Powers>> : Lying<Nibbles<T, Steps>> {};
template <typename T>
struct Lying<Nibbles<T, Scaled>> : Lying<Nibbles<T, Steps>> {};

template <int R>
[[gnu::always_inline]] inline void copy(const Floats (&from)[R][FEWEST], Floats (&to)[R][FEWEST]) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < FEWEST; j++) to[i][j] = from[i][j];
}

// Multiplies the inputs `begin` to `end` of `R` rows by the outputs from `n` on, whose weights begin at `laid`. From the `FIRST`
// inputs to the `LAST`, the sums are kept in `held`.
template <typename Kind, int R, bool FIRST, bool LAST, typename T>
inline void piece(const Linear<T>& linear, const T* laid, const T* input, T* output, int64_t n, int64_t begin, int64_t end,
                  Ahead ahead, Floats (&held)[R][FEWEST]) {
    Floats sums[R][FEWEST] = {};
    if constexpr (!FIRST) copy(held, sums);
    add_products<Kind>(sums, input, linear.inputs, Layout<T>{laid, FEWEST, STEP<T>}, begin, end, ahead);
    if constexpr (LAST)
        finish(linear, sums, output, n);
    else
        copy(sums, held);
}

// Multiplies `R` of all `rows`, from `m` on, by the outputs `begin` to `end`; each row prefetches its part of the next panel. Where
// the second-level cache does not hold all rows, each of the first `R` tiles prefetches a row of the next chunk or strip.
template <typename Kind, int R, typename T>
void panel_strip(const Linear<T>& linear, const T* laid, int64_t rows, int64_t m, const T* input, T* output, int64_t begin,
                 int64_t end) {
    alignas(VECTOR) Floats held[PANEL / FEWEST][R][FEWEST];
    const int64_t inputs = linear.inputs, chunk = inputs > 2 * CHUNK<T> ? CHUNK<T> : inputs;
    const int64_t from = m * inputs / rows, to = (m + R) * inputs / rows;
    const T* strip = m + R < rows ? input + (m + R) * inputs : input;
    const int64_t fetching = rows * inputs * static_cast<int64_t>(sizeof(T)) > STAYING ? R : 0;  // tiles
    input += m * inputs;
    output += m * linear.outputs;
    for (int64_t k = 0; k < inputs; k += chunk)
        for (int64_t n = begin; n < end; n += FEWEST) {
            const T* own = laid + (n - begin) * inputs;
            const T* next = k + chunk < inputs ? input + chunk : strip - k;
            const int64_t tile = (n - begin) / FEWEST;
            const Ahead ahead{Kind(linear, n + PANEL).bytes(0), from, to, tile < fetching ? next + tile * inputs : nullptr};
            auto& sums = held[tile];
            if (chunk == inputs)
                piece<Kind, R, true, true>(linear, own, input, output, n, 0, inputs, ahead, sums);
            else if (k == 0)
                piece<Kind, R, true, false>(linear, own, input, output, n, 0, chunk, ahead, sums);
            else if (k + chunk < inputs)
                piece<Kind, R, false, false>(linear, own, input, output, n, k, k + chunk, ahead, sums);
            else
                piece<Kind, R, false, true>(linear, own, input, output, n, k, inputs, ahead, sums);
        }
}

// The functions for strips of one row, two rows, and so on.
template <typename Kind, typename T, std::size_t... R>
constexpr auto panel_strips_of(std::index_sequence<R...>) {
    return std::array{&panel_strip<Kind, R + 1, T>...};
}

// How many of the last rows go in strips of four: two of those are faster than a strip of six and one of two.
inline int64_t in_fours(int64_t rows) { return ROWS == 6 && rows % ROWS == 2 && rows > 2 ? 8 : 0; }

// Whether it pays to lay out plain weights. For up to `MANY` rows it does if vectors of weights lie across two cache lines, which
// takes twice as long to read, and a panel is too large for the first-level cache. Up to `MANY / 2` rows, the panel must also fit
// into the second-level cache beside the next one.
template <typename T>
bool pays_to_lay_out(const Linear<T>& linear, int64_t rows) {
    const int64_t bytes = PANEL * linear.inputs * static_cast<int64_t>(sizeof(T));
    const bool across = reinterpret_cast<uintptr_t>(linear.weight) % VECTOR, stays = bytes <= 1 << 17;
    return rows > MANY || (rows > ROWS && across && bytes > 1 << 15 && (stays || rows > MANY / 2));
}

// Multiplies `input` `[rows, inputs]` into the outputs `begin` to `end`, a panel at most, of `output` `[rows, outputs]`. If plain
// weights are laid out, that happens while the first strip is computed.
template <typename Kind, typename T>
void multiply_by_panel(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end) {
    static constexpr auto all = std::make_index_sequence<ROWS>();
    static constexpr auto laid_strips = panel_strips_of<typename Lying<Kind>::As, T>(all);
    static constexpr auto strips = strips_of<false, false, T>(all), laying_strips = strips_of<true, false, T>(all);
    static constexpr auto paced_strips = strips_of<false, (PACED_ROWS > 0), T>(all);
    const bool lays = !IS_PLAIN<Kind> || pays_to_lay_out(linear, rows);
    const bool is_paced = rows <= PACED_ROWS && linear.inputs <= PACED_INPUTS;
    const auto& own_strips = lays ? laying_strips : is_paced ? paced_strips : strips;
    T* laid = lays ? room_of<T>(PANEL * linear.inputs / STEP<T>) : nullptr;
    if constexpr (!IS_PLAIN<Kind>) lay_out<Kind>(linear, begin, end, laid);
    const int64_t others = rows - in_fours(rows);
    for (int64_t m = 0, some; m < rows; m += some) {
        some = m < others ? std::min<int64_t>(ROWS, others - m) : 4;
        if (lays && (m || !IS_PLAIN<Kind>))
            laid_strips[some - 1](linear, laid, rows, m, input, output, begin, end);
        else
            own_strips[some - 1](linear, laid, rows, m, input, output, begin, end);
    }
}
