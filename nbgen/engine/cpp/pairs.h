// More rows by weights as they are than four outputs have room for in registers, and fewer than it pays to lay weights out for.
//
// Two outputs at a time, of two places in memory, meet a strip of rows that stays in the first-level cache. Each place is read
// from its beginning to its end, for only then a processor fetches ahead by itself, and it drops most of what it is told to.
// Sums are those of `strips.h`, to the bit.

#pragma once

#include <vector>

#include "few_rows.h"

constexpr int TALL = 2 * ROWS;           // rows of a strip: their sums by two outputs fill the registers
constexpr int64_t SOME = 3 * ROWS;       // rows at most
constexpr int64_t SHORT = 512;           // inputs for which it is not worth it
constexpr int64_t FETCHED_AHEAD = 6144;  // bytes

// Whether there are enough rows, and not too many, of enough inputs. (Those of float fill a cache twice as fast: it was no gain.)
template <typename T>
bool come_in_strips(int64_t rows, int64_t inputs) {
    return std::is_same_v<T, Bfloat16> && rows > ROWS && rows <= SOME && inputs > SHORT;
}

// Whether such rows, which are not few, meet the layer's weights as here, if they are plain. More than a strip's do where vectors
// lie across two lines of memory, which a panel would read twice as long.
template <typename T>
bool suit_pairs(const Linear<T>& linear, int64_t rows) {
    return linear.weight && (rows <= TALL || reinterpret_cast<uintptr_t>(linear.weight) % VECTOR);
}

// Strips of `[rows, inputs]`, each as `[inputs / STEP, rows, STEP]`: the caches have no room for places that are far apart. A
// thread has room for those of one `Inputs` at a time.
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

// Inputs of a strip that stay in the first-level cache, beside what goes by, until the next output: all, or so many at a time.
template <typename T>
int64_t inputs_near(int64_t rows, int64_t inputs) {
    constexpr int64_t MULTIPLE = 256;
    const int64_t near = first_level() * 3 / 5, bytes = rows * inputs * static_cast<int64_t>(sizeof(T));
    const int64_t times = (bytes + near - 1) / near;
    return times > 1 ? (inputs / times + MULTIPLE - 1) / MULTIPLE * MULTIPLE : inputs;
}

// The inputs `from` to `to` of a strip of `R` rows by the output `n` of two pieces. Their `sums` by four outputs each are kept from
// some inputs to the next, and when they are whole become outputs.
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

// Rows whose `strips` these are by the outputs of a cut in pieces, whose weights stay in the second-level cache meanwhile.
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
