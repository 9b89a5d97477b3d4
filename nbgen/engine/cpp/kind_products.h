// Products of rows, few or many, with weights of one kind. Knows no other kinds, and no teams.

#pragma once

#include "byte_products.h"
#include "few_rows.h"
#include "lane_products.h"
#include "panel.h"

// Multiplies a few rows by the outputs of a cut.
template <typename Kind, typename T>
void multiply_few(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut) {
    if constexpr (FEW<Kind> > AT_ONCE<Kind>)
        if (rows > AT_ONCE<Kind>) return read_strips<Kind>(linear, rows, input, output, cut);
    static constexpr auto few = for_few<Kind, T>(std::make_index_sequence<std::min(FEW<Kind>, AT_ONCE<Kind>)>());
    few[rows - 1](linear, input, output, cut);
}

// Writes the weights of the outputs `begin` to `end` to `room`. Meanwhile it prefetches as many outputs that follow, as they lie in
// memory.
template <typename Kind, typename T>
void write_out(const Linear<T>& linear, int64_t begin, int64_t end, T* room) {
    const int64_t line = LINE * 8 / Kind::BITS;
    int64_t fetched = end * linear.inputs;  // the weight's number
    for (int64_t n = begin; n < end; n++, room += linear.inputs) {
        const Kind own(linear, n);
        for (int64_t k = 0; k < linear.inputs; k += GROUP, fetched += GROUP) {
            if (fetched % line == 0) fetch_line(Kind(linear, 0).bytes(fetched));
#pragma GCC unroll 8
            for (int64_t part = 0; part < GROUP / STEP<T>; part++) put(own.read(k, part), room + k + part * STEP<T>);
        }
    }
}

// The products of one row in lanes, for processors that have tiles.
template <typename T>
using ByRow = void (*)(const Linear<T>& linear, const T* row, T* output, int64_t begin, int64_t end);

template <typename Kind, typename T>
constexpr ByRow<T> by_row() {
#ifdef TILES
    if constexpr (std::is_same_v<T, Bfloat16> && !IS_PLAIN<Kind>) return multiply_in_lanes<Kind>;
#endif
    return nullptr;
}

// The products of rows as bytes, for processors that multiply these.
class ByteRows;
using ByBytes = void (*)(const Linear<float>& linear, const ByteRows& rows, float* output, const Cut& cut);

template <typename Kind>
constexpr ByBytes by_bytes() {
#ifdef BYTE_PRODUCTS
    if constexpr (std::is_same_v<Kind, Integers<float>>) return multiply_by_bytes;
#endif
    return nullptr;
}

// The functions for products with one kind of weights.
template <typename T>
struct KindProducts {
    int at_once;  // rows that one loop of `of_few` multiplies, at most
    bool (*are_few)(const Linear<T>& linear, int64_t rows);
    void (*of_few)(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut);
    void (*by_panel)(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end);
    void (*write)(const Linear<T>& linear, int64_t begin, int64_t end, T* room);
    ByRow<T> by_row;
    ByBytes by_bytes;
};

template <typename Kind, typename T>
constexpr KindProducts<T> OF_KIND{AT_ONCE<Kind>,
                                  are_few<Kind, T>,
                                  multiply_few<Kind, T>,
                                  multiply_by_panel<Kind, T>,
                                  write_out<Kind, T>,
                                  by_row<Kind, T>(),
                                  by_bytes<Kind>()};
