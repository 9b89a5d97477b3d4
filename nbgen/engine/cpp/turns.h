// How positions turn heads (rotary embeddings, Su et al. 2021), in the ways that families have.

#pragma once

#include "numbers.h"

// Of a head, against each other: its halves, by numbers of their own or by the same; or neighbours.
enum Turns : int64_t { HALVES, PAIRS, SAME_HALVES };

// One head, whose first `turned` numbers are turned. What turns the second of two numbers stands `later` by so many.
template <bool ROUNDS, bool IN_PAIRS, typename T>
void turn(const T* input, const float* cosines, const float* sines, int64_t turned, int64_t later, T* output) {
    const auto passed = [](float number) { return ROUNDS ? rounded<T>(number) : number; };
    const int64_t half = turned / 2, further = IN_PAIRS ? 1 : half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const int64_t at = IN_PAIRS ? 2 * i : i;
        float a = widen(input[at]), b = widen(input[at + further]);
        float first = passed(a * cosines[i]) + passed(-b * sines[i]);
        float second = passed(b * cosines[i + later]) + passed(a * sines[i + later]);
        narrow(first, output + at);
        narrow(second, output + at + further);
    }
}

