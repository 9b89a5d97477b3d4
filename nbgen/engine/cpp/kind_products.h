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

// The functions for products with one kind of weights.
template <typename T>
struct KindProducts {
    bool (*are_few)(const Linear<T>& linear, int64_t rows);
    void (*of_few)(const Linear<T>& linear, int64_t rows, const T* input, T* output, const Cut& cut);
    void (*by_panel)(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end);
};

template <typename Kind, typename T>
constexpr KindProducts<T> OF_KIND{are_few<Kind, T>, multiply_few<Kind, T>, multiply_by_panel<Kind, T>};
