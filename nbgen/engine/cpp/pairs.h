// Plain weights by more rows than registers hold sums of four outputs for, and by fewer than it pays to lay weights out for.
//
// A strip of rows stays in the first-level cache, and is multiplied by two outputs at a time, from two places in memory. Each place
// is read from beginning to end: only then does a processor prefetch by itself, and it drops most prefetches that code asks for.
// Sums equal those of `strips.h` to the bit.

#pragma once

#include <vector>

#include "few_rows.h"

constexpr int TALL = 2 * ROWS;           // rows of a strip: their sums by two outputs fill the registers
constexpr int64_t SOME = 3 * ROWS;       // rows at most
constexpr int64_t SHORT = 512;           // with no more inputs than these, it does not pay
constexpr int64_t FETCHED_AHEAD = 6144;  // bytes

// Whether there are enough rows, and not too many, of enough inputs. (Rows of float fill a cache twice as fast: no gain.)
template <typename T>
bool come_in_strips(int64_t rows, int64_t inputs) {
    return std::is_same_v<T, Bfloat16> && rows > ROWS && rows <= SOME && inputs > SHORT;
}

// Whether to multiply such rows, too many for `few_rows.h`, by pairs of outputs: only if weights are plain. More rows than a
// strip's do so only where vectors of weights lie across two cache lines, which a panel would take twice as long to read.
template <typename T>
bool suit_pairs(const Linear<T>& linear, int64_t rows) {
    return linear.weight && (rows <= TALL || reinterpret_cast<uintptr_t>(linear.weight) % VECTOR);
}

// Copies rows `[rows, inputs]` to strips, each `[inputs / STEP, rows, STEP]`: rows that lie far apart would push each other out of
// the caches. A thread has one buffer, for the strips of one `Inputs` at a time.
template <typename T>
const T* strips_of(int64_t rows, int64_t inputs, const T* numbers) {
    thread_local std::vector<T> room;
    if (static_cast<int64_t>(room.size()) < rows * inputs + STEP<T>) room.resize(rows * inputs + STEP<T>);
    T* made = room.data() + STEP<T> - reinterpret_cast<uintptr_t>(room.data()) % VECTOR / sizeof(T);
    for (int64_t m = 0; m < rows; m += TALL) {
        const int64_t count = std::min<int64_t>(TALL, rows - m);
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = 0; k < inputs; k += STEP<T>)
                std::memcpy(made + m * inputs + k * count + i * STEP<T>, numbers + (m + i) * inputs + k, VECTOR);
    }
    return made;
}

// How many of a strip's inputs to take at a time, so that they stay in the first-level cache from one output to the next.
template <typename T>
int64_t inputs_near(int64_t rows, int64_t inputs) {
    constexpr int64_t MULTIPLE = 256;
    const int64_t near = first_level() * 3 / 5, bytes = rows * inputs * static_cast<int64_t>(sizeof(T));
    const int64_t times = (bytes + near - 1) / near;
    return times > 1 ? (inputs / times + MULTIPLE - 1) / MULTIPLE * MULTIPLE : inputs;
}

// Multiplies the inputs `from` to `to` of a strip of `R` rows by the outputs `n` and `n + apart`. `sums` keeps the sums of four
// outputs of each of the two pieces from call to call; once the four are complete, they become outputs.
template <int R, typename T>
void add_pair(const Linear<T>& linear, const T* strip, T* output, int64_t n, int64_t apart, int64_t from, int64_t to,
              int64_t ahead, Floats* sums) {
    auto& fours = *reinterpret_cast<Floats(*)[2][R][FEWEST]>(sums);
    const int64_t j = n % FEWEST;
    Floats own[R][2] = {};
    if (from)
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) own[i][0] = fours[0][i][j], own[i][1] = fours[1][i][j];
    add_inputs<Plain<T>, true>(own, linear, n, apart, Layout<T>{strip, R, STEP<T>}, from, to, ahead);
#pragma GCC unroll 12
    for (int i = 0; i < R; i++) fours[0][i][j] = own[i][0], fours[1][i][j] = own[i][1];
    if (j == FEWEST - 1 && to == linear.inputs)
        for (int a = 0; a < 2; a++) finish(linear, fours[a], output, n - j + a * apart);
}

// The same for one row, two rows, and so on.
template <typename T, std::size_t... R>
constexpr auto pairs_of(std::index_sequence<R...>) {
    return std::array{&add_pair<R + 1, T>...};
}

// Multiplies the rows in `strips` by the outputs of a cut in pieces, whose weights stay in the second-level cache for all strips.
template <typename T>
void multiply_by_pairs(const Linear<T>& linear, int64_t rows, const T* strips, T* output, const Cut& cut) {
    static constexpr auto add = pairs_of<T>(std::make_index_sequence<TALL>());
    const int64_t inputs = linear.inputs;
    alignas(VECTOR) Floats sums[PIECE / FEWEST][TALL * 2 * FEWEST];
    for (int64_t m = 0, count; m < rows; m += count) {
        count = std::min<int64_t>(TALL, rows - m);
        const int64_t some = inputs_near<T>(count, inputs);
        const int64_t ahead = some < inputs ? inputs * static_cast<int64_t>(sizeof(T)) : FETCHED_AHEAD;
        for (int64_t begin = cut.begin; begin < cut.begin + PIECES * cut.apart; begin += 2 * cut.apart)
            for (int64_t from = 0, to; from < inputs; from = to) {
                to = std::min(inputs, from + some);
                for (int64_t n = begin; n < begin + cut.width; n++)
                    add[count - 1](linear, strips + m * inputs, output + m * linear.outputs, n, cut.apart, from, to, ahead,
                                   sums[some < inputs ? (n - begin) / FEWEST : 0]);
            }
    }
}
