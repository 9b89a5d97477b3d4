// Which of many experts rows go to.

#pragma once

#include "linear.h"

// A row goes to the `each` experts of which `scores` makes most. Their shares are a softmax over what it makes of these, or
// `among_all`, and are rounded if it `rounds`.
template <typename T>
struct Router {
    Linear<T> scores;
    int64_t each, among_all, rounds;
};

// Of a row's `scores` `[experts]`, `each` at least. Of those that are alike the first come first.
template <typename T>
void route(const Router<T>& router, const T* scores, int64_t* chosen, float* shares) {
    const int64_t count = router.scores.outputs, each = router.each;
    int64_t held = 0;
    for (int64_t expert = 0; expert < count; expert++) {
        const float own = widen(scores[expert]);
        int64_t at = held;
        for (; at > 0 && own > widen(scores[chosen[at - 1]]); at--)
            if (at < each) chosen[at] = chosen[at - 1];
        if (at < each) chosen[at] = expert;
        held = std::min(held + 1, each);
    }
    const float highest = widen(scores[chosen[0]]);
    const auto power = [&](int64_t expert) { return std::exp(widen(scores[expert]) - highest); };
    float sum = 0;
    for (int64_t i = 0; i < each; i++) sum += shares[i] = power(chosen[i]);
    if (router.among_all) {
        sum = 0;
        for (int64_t expert = 0; expert < count; expert++) sum += power(expert);
    }
    for (int64_t i = 0; i < each; i++) shares[i] = router.rounds ? rounded<T>(shares[i] / sum) : shares[i] / sum;
}
