// Rotary position embeddings of heads (Su et al. 2021), in the variants that families have.

#pragma once

#include <array>

#include "numbers.h"

// Which two numbers of a head turn together: one of each half, or neighbours (pairs), each by a cosine and sine of its own or both
// by the same (`SAME_`); or halves in the opposite direction; or pairs, whose results are stored in halves.
enum Turns : int64_t { HALVES, SAME_PAIRS, SAME_HALVES, PAIRS, HALVES_BACK, PAIRS_TO_HALVES };

// Turns the first `turned` numbers of one head. A number's own cosine and sine stand at the same index as the number.
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

// Indexed by `Turns`.
template <bool ROUNDS, typename T>
constexpr std::array turners = {&turn<ROUNDS, HALVES, T>, &turn<ROUNDS, SAME_PAIRS, T>, &turn<ROUNDS, SAME_HALVES, T>,
                                &turn<ROUNDS, PAIRS, T>, &turn<ROUNDS, HALVES_BACK, T>, &turn<ROUNDS, PAIRS_TO_HALVES, T>};
