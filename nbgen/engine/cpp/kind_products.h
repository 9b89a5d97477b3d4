// Products of rows, few or many, with weights of one kind. Knows no other kinds, and no teams.

#pragma once

#include "few_rows.h"
#include "panel.h"

// Multiplies a few rows by the outputs of a cut.
template <typename Kind, typename T>
void multiply_few(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut) {
    if constexpr (FEW<Kind> > AT_ONCE)
        if (rows > AT_ONCE) return read_strips<Kind>(linear, rows, input, output, cut);
    static constexpr auto few = for_few<Kind, T>(std::make_index_sequence<std::min(FEW<Kind>, AT_ONCE)>());
    few[rows - 1](linear, input, output, cut);
}

// Some outputs and inputs of a layer, each from the first to one past the last. Inputs are multiples of `GROUP`.
struct Patch {
    int64_t begin, end, from, to;
};

// Writes a patch of weights to `room`, where outputs are `stride` apart. Meanwhile it prefetches this patch's share of the outputs
// that follow, as many as the patch has, in the order in which they lie in memory.
template <typename Kind, typename T>
void write_out(const Linear<T>& linear, const Patch& patch, T* room, int64_t stride) {
    const int64_t count = patch.end - patch.begin, line = LINE * 8 / Kind::BITS;
    int64_t fetched = patch.end * linear.inputs + patch.from * count;  // the weight's number
    for (int64_t n = patch.begin; n < patch.end; n++, room += stride) {
        const Kind own(linear, n);
        for (int64_t k = patch.from; k < patch.to; k += GROUP, fetched += GROUP) {
            if (fetched % line == 0) fetch_line(Kind(linear, 0).bytes(fetched));
#pragma GCC unroll 8
            for (int64_t part = 0; part < GROUP / STEP<T>; part++) put(own.read(k, part), room + k - patch.from + part * STEP<T>);
        }
    }
}

// The functions for products with one kind of weights.
template <typename T>
struct KindProducts {
    bool (*are_few)(const Linear<T>& linear, int64_t rows);
    void (*of_few)(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut);
    void (*by_panel)(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end);
    void (*write)(const Linear<T>& linear, const Patch& patch, T* room, int64_t stride);
    int64_t line;  // inputs whose weights fill a cache line
};

template <typename Kind, typename T>
constexpr KindProducts<T> OF_KIND{are_few<Kind, T>, multiply_few<Kind, T>, multiply_by_panel<Kind, T>, write_out<Kind, T>,
                                  LINE * 8 / Kind::BITS};
