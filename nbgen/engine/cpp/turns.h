// How positions turn heads (rotary embeddings, Su et al. 2021), in the ways that families have.

#pragma once

#include <array>

#include "numbers.h"

// Of a head, against each other: its halves or neighbours (pairs), by numbers of their own or by the same; or halves the other way
// round; or pairs, which stand in halves then.
enum Turns : int64_t { HALVES, SAME_PAIRS, SAME_HALVES, PAIRS, HALVES_BACK, PAIRS_TO_HALVES };

// One head, whose first `turned` numbers are turned. Numbers of their own stand where those that they turn do.
template <bool ROUNDS, Turns WAY, typename T>
void turn(const T* input, const float* cosines, const float* sines, int64_t turned, T* output) {
    constexpr bool TO_PAIRS = WAY == PAIRS || WAY == SAME_PAIRS, PAIRED = TO_PAIRS || WAY == PAIRS_TO_HALVES;
    const auto passed = [](float number) { return ROUNDS ? rounded<T>(number) : number; };
    constexpr bool OWN = WAY == PAIRS || WAY == HALVES || WAY == HALVES_BACK;
    constexpr float ROUND = WAY == HALVES_BACK ? -1.0f : 1.0f;
    const int64_t half = turned / 2, further = PAIRED ? 1 : half, later = OWN ? further : 0;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        const int64_t at = PAIRED ? 2 * i : i, by = WAY == PAIRS ? at : i, to = TO_PAIRS ? at : i;
        float a = widen(input[at]), b = widen(input[at + further]);
        float first = passed(a * cosines[by]) + passed(-ROUND * b * sines[by]);
        float second = passed(b * cosines[by + later]) + passed(ROUND * a * sines[by + later]);
        narrow(first, output + to);
        narrow(second, output + to + (TO_PAIRS ? 1 : half));
    }
}

// By `Turns`.
template <bool ROUNDS, typename T>
constexpr std::array turners = {&turn<ROUNDS, HALVES, T>, &turn<ROUNDS, SAME_PAIRS, T>, &turn<ROUNDS, SAME_HALVES, T>,
                                &turn<ROUNDS, PAIRS, T>, &turn<ROUNDS, HALVES_BACK, T>, &turn<ROUNDS, PAIRS_TO_HALVES, T>};
