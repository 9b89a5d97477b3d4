// Many rows by a panel of weights, which are laid out for them first, whatever they are kept as.
//
// A panel lies in the second-level cache, tile after tile, on whole cache lines. Of long rows so many inputs come at a time
// that they and a tile's weights stay in the first-level cache. Sums are those of `strips.h`, to the bit.

#pragma once

#include <vector>

#include "strips.h"

constexpr int64_t MANY = 8 * ROWS;  // rows for which it pays

template <typename T>
constexpr int64_t CHUNK = 2048 / sizeof(T);  // inputs of a long row at a time

// The weights of one output as numbers, which may be made in `room`.
template <typename T>
const T* numbers_of(const Linear<T>& linear, int64_t output, T* room) {
    const int64_t inputs = linear.inputs;
    if (linear.weight) return linear.weight + output * inputs;
    if (!linear.steps) {
        const int8_t* integers = linear.integers + output * inputs;
#pragma omp simd
        for (int64_t i = 0; i < inputs; i++) narrow(integers[i], room + i);
        return room;
    }
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(linear.integers) + output * inputs / 2;
    const T* steps = linear.steps + 2 * output * inputs / GROUP;
    T* to = room;
    for (int64_t group = 0; group < inputs / GROUP; group++, bytes += GROUP / 2, to += GROUP) {
        const float step = widen(steps[2 * group]), middle = widen(steps[2 * group + 1]);
#pragma omp simd
        for (int64_t i = 0; i < GROUP / 2; i++) {
            narrow(((bytes[i] & 15) - 8) * step + middle, to + i);
            narrow(((bytes[i] >> 4) - 8) * step + middle, to + GROUP / 2 + i);
        }
    }
    return room;
}

// The outputs `begin` to `end`, `[outputs / FEWEST, inputs / STEP, FEWEST, STEP]`.
template <typename T>
const T* laid_out(const Linear<T>& linear, int64_t begin, int64_t end) {
    struct alignas(VECTOR) Line {
        T numbers[STEP<T>];
    };
    thread_local std::vector<Line> lines;
    thread_local std::vector<T> room;
    const int64_t steps = linear.inputs / STEP<T>;
    if (static_cast<int64_t>(lines.size()) < PANEL * steps) lines.resize(PANEL * steps);
    if (static_cast<int64_t>(room.size()) < linear.inputs) room.resize(linear.inputs);
    for (int64_t n = begin; n < end; n++) {
        const T* from = numbers_of(linear, n, room.data());
        Line* to = lines.data() + (n - begin) / FEWEST * FEWEST * steps + (n - begin) % FEWEST;
        for (int64_t k = 0; k < steps; k++) std::memcpy(to + k * FEWEST, from + k * STEP<T>, sizeof(Line));
    }
    return lines.data()->numbers;
}

template <int R>
[[gnu::always_inline]] inline void copy(const Floats (&from)[R][FEWEST], Floats (&to)[R][FEWEST]) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < FEWEST; j++) to[i][j] = from[i][j];
}

// The inputs `begin` to `end` of `R` rows by the outputs from `n` on, which `laid` begins with. Between the first and the
// last of them the sums are `held`. Of the next panel's weights, where they are numbers, `from` to `to` are fetched.
template <int R, bool FIRST, bool LAST, typename T>
inline void piece(const Linear<T>& linear, const T* laid, const T* input, T* output, int64_t n, int64_t begin, int64_t end,
                  int64_t from, int64_t to, Floats (&held)[R][FEWEST]) {
    const T* next = linear.weight + (n + PANEL) * linear.inputs;
    Floats sums[R][FEWEST] = {};
    if constexpr (!FIRST) copy(held, sums);
    add_products(sums, input, linear.inputs, Weights<T>{laid, FEWEST, STEP<T>}, begin, end, next, Ahead{PANEL, from, to});
    if constexpr (LAST)
        finish(linear, sums, output, n);
    else
        copy(sums, held);
}

// `R` rows from `m` on of all `rows`, by the outputs `begin` to `end`: each row fetches its part of the next panel.
template <int R, typename T>
inline void panel_strip(const Linear<T>& linear, const T* laid, int64_t rows, int64_t m, const T* input, T* output,
                        int64_t begin, int64_t end) {
    alignas(VECTOR) Floats held[PANEL / FEWEST][R][FEWEST];
    const int64_t inputs = linear.inputs, chunk = inputs > 2 * CHUNK<T> ? CHUNK<T> : inputs;
    const int64_t from = linear.weight ? m * inputs / rows : 0, to = linear.weight ? (m + R) * inputs / rows : 0;
    input += m * inputs;
    output += m * linear.outputs;
    for (int64_t k = 0; k < inputs; k += chunk)
        for (int64_t n = begin; n < end; n += FEWEST) {
            const T* own = laid + (n - begin) * inputs;
            auto& sums = held[(n - begin) / FEWEST];
            if (chunk == inputs)
                piece<R, true, true>(linear, own, input, output, n, 0, inputs, from, to, sums);
            else if (k == 0)
                piece<R, true, false>(linear, own, input, output, n, 0, chunk, from, to, sums);
            else if (k + chunk < inputs)
                piece<R, false, false>(linear, own, input, output, n, k, k + chunk, from, to, sums);
            else
                piece<R, false, true>(linear, own, input, output, n, k, inputs, from, to, sums);
        }
}

// `input` `[rows, inputs]` to the outputs `begin` to `end`, a panel at most, of `output` `[rows, outputs]`.
template <typename T>
void multiply_by_panel(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end) {
    const T* laid = laid_out(linear, begin, end);
    int64_t m = 0;
    for (; m + ROWS <= rows - in_fours(rows); m += ROWS)
        panel_strip<ROWS>(linear, laid, rows, m, input, output, begin, end);
    for (; m + 4 <= rows; m += 4) panel_strip<4>(linear, laid, rows, m, input, output, begin, end);
    for (; m < rows; m++) panel_strip<1>(linear, laid, rows, m, input, output, begin, end);
}
