// How positions turn heads (rotary embeddings, Su et al. 2021), in the ways that families have.

#pragma once

#include <array>

#include "numbers.h"

// Of a head, against each other: its halves or neighbours (pairs), by numbers of their own or by the same.
enum Turns : int64_t { HALVES, SAME_PAIRS, SAME_HALVES, PAIRS };

// One head, whose first `turned` numbers are turned. Numbers of their own stand where those that they turn do.
template <bool ROUNDS, Turns WAY, typename T>
void turn(const T* input, const float* cosines, const float* sines, int64_t turned, T* output) {
    constexpr bool IN_PAIRS = WAY == PAIRS || WAY == SAME_PAIRS;
    const auto passed = [](float number) { return ROUNDS ? rounded<T>(number) : number; };
    const int64_t half = turned / 2, further = IN_PAIRS ? 1 : half, later = WAY == PAIRS || WAY == HALVES ? further : 0;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const int64_t at = IN_PAIRS ? 2 * i : i, by = WAY == PAIRS ? at : i;
        float a = widen(input[at]), b = widen(input[at + further]);
        float first = passed(a * cosines[by]) + passed(-b * sines[by]);
        float second = passed(b * cosines[by + later]) + passed(a * sines[by + later]);
        narrow(first, output + at);
        narrow(second, output + at + further);
    }
}

// By `Turns`.
template <bool ROUNDS, typename T>
constexpr std::array turners = {&turn<ROUNDS, HALVES, T>, &turn<ROUNDS, SAME_PAIRS, T>, &turn<ROUNDS, SAME_HALVES, T>,
                                &turn<ROUNDS, PAIRS, T>};
