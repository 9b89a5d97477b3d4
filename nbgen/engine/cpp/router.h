// Which of many experts rows go to.

#pragma once

#include "linear.h"
#include "norms.h"

// What an expert counts: its share of a softmax over those chosen or over all, or the logistic of its score, by itself or as a
// share of those chosen.
enum Counting : int64_t { OF_CHOSEN, OF_ALL, LOGISTIC, LOGISTIC_OF_CHOSEN };

// A row goes to the `each` experts of which `scores` makes most; or, of logistics, most with the `favour` `[experts]` that each is
// done, null for none. What they count is multiplied by a `factor`, and rounded if it `rounds`; logistics are on the way, too. What
// goes in may have a `norm` of its own, and counts `scale` times then; and each expert's share may count what its `counts` says.
template <typename T>
struct Router {
    Linear<T> scores;
    const float* favour;
    const float* counts;
    int64_t each, rounds;
    Counting counting;
    float factor, scale;
    Norm<T> norm;
};

template <typename T>
float number_of(const Router<T>& router, T score) {
    return router.counting < LOGISTIC ? widen(score) : rounded<T>(logistic(widen(score)));
}

// Of a row's `scores` `[experts]`, `each` at least. Of those that are alike the first come first.
template <typename T>
void choose(const Router<T>& router, const T* scores, int64_t* chosen) {
    const auto wanted = [&](int64_t expert) {
        return number_of(router, scores[expert]) + (router.favour ? router.favour[expert] : 0.0f);
    };
    int64_t held = 0;
    for (int64_t expert = 0; expert < router.scores.outputs; expert++) {
        const float own = wanted(expert);
        int64_t at = held;
        for (; at > 0 && own > wanted(chosen[at - 1]); at--)
            if (at < router.each) chosen[at] = chosen[at - 1];
        if (at < router.each) chosen[at] = expert;
        held = std::min(held + 1, router.each);
    }
}

template <typename T>
void share_by_softmax(const Router<T>& router, const T* scores, const int64_t* chosen, float* shares) {
    const float highest = widen(scores[chosen[0]]);
    const auto power = [&](int64_t expert) { return std::exp(widen(scores[expert]) - highest); };
    float sum = 0;
    for (int64_t i = 0; i < router.each; i++) sum += shares[i] = power(chosen[i]);
    if (router.counting == OF_ALL) {
        sum = 0;
        for (int64_t expert = 0; expert < router.scores.outputs; expert++) sum += power(expert);
    }
    for (int64_t i = 0; i < router.each; i++) shares[i] = router.rounds ? rounded<T>(shares[i] / sum) : shares[i] / sum;
}

template <typename T>
void share_by_logistic(const Router<T>& router, const T* scores, const int64_t* chosen, float* shares) {
    float sum = 0;
    for (int64_t i = 0; i < router.each; i++) sum += shares[i] = number_of(router, scores[chosen[i]]);
    const float all = router.counting == LOGISTIC_OF_CHOSEN ? rounded<T>(rounded<T>(sum) + 1e-6f) : 1.0f;
    for (int64_t i = 0; i < router.each; i++) shares[i] = rounded<T>(rounded<T>(shares[i] / all) * router.factor);
}

template <typename T>
void route(const Router<T>& router, const T* scores, int64_t* chosen, float* shares) {
    choose(router, scores, chosen);
    (router.counting < LOGISTIC ? share_by_softmax<T> : share_by_logistic<T>)(router, scores, chosen, shares);
    if (router.counts)
        for (int64_t i = 0; i < router.each; i++) shares[i] *= router.counts[chosen[i]];
}
