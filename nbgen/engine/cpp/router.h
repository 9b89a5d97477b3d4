// Chooses which of many experts a row goes to, and their weights.

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "norms.h"
#include "team.h"
#include "weights.h"

// The weight of a chosen expert: its share of a softmax over the chosen ones or over all; the logistic of its score, by itself or
// as a share of the chosen ones'; or, one expert after the other, its share of a softmax over those not chosen before it whose
// scores are near its own (SparseMixer, Liu et al. 2024).
enum Counting : int64_t { OF_CHOSEN, OF_ALL, LOGISTIC, LOGISTIC_OF_CHOSEN, OF_NEAR };

// A row goes to the `each` experts with the highest scores, by the product `scores` or by `exact` weights `[experts, in]`, whose
// scores are not rounded. A `favour` `[experts]`, null for none, is added for the choice alone, to logistics or to shares of a
// softmax over all. Only experts of `open` of the `groups` are chosen: of those whose `best` experts have the highest sums. Weights
// are multiplied by `factor` and, if it `rounds`, rounded, as are logistics. Where weights are shares of the chosen, their sum has
// `least` added; for `OF_NEAR`, near scores differ by at most that share of the larger one. The input may have its own `norm`,
// followed by a factor `scale`. In the end, weights are multiplied by `counts` `[experts]`, if not null.
template <typename T>
struct Router {
    Linear<T> scores;
    const float* exact;
    const float* favour;
    const float* counts;
    int64_t each, groups, open, best, rounds;
    Counting counting;
    float least, factor, scale;
    Norm<T> norm;

    float round(float number) const { return rounds ? rounded<T>(number) : number; }
};

// A row's exact scores of four experts from `n` on, or of as many as are left.
template <typename T>
void score_exactly(const Router<T>& router, const T* row, int64_t n, float* scores) {
    const int64_t inputs = router.scores.inputs, some = std::min<int64_t>(4, router.scores.outputs - n);
    const float* weights = router.exact + n * inputs;
    Floats sums[4] = {};
    for (int64_t k = 0; k < inputs; k += LANES) {
        Floats own;
        if constexpr (std::is_same_v<T, float>)
            own = loaded(row + k);
        else
            own = widened(row + k);
        for (int i = 0; i < 4; i++) sums[i] += loaded(weights + std::min<int64_t>(i, some - 1) * inputs + k) * own;
    }
    const auto four = sums_of(sums[0], sums[1], sums[2], sums[3]);
    std::memcpy(scores + n, &four, some * sizeof(float));
}

// Computes exact `scores` `[rows, experts]`, which are not rounded.
template <typename T>
void score_exactly(Team::Member& member, const Router<T>& router, int64_t rows, const T* input, float* scores) {
    const int64_t inputs = router.scores.inputs, experts = router.scores.outputs;
    member.each((experts + 3) / 4, [&](int64_t unit) {
        for (int64_t row = 0; row < rows; row++)
            score_exactly(router, input + row * inputs, 4 * unit, scores + row * experts);
    });
}

// What experts are chosen by, before favours: their weights or, for a softmax without favours, their scores.
template <typename T>
void count_all(const Router<T>& router, const float* scores, float highest, float* all) {
    const int64_t experts = router.scores.outputs;
    if (router.counting == LOGISTIC || router.counting == LOGISTIC_OF_CHOSEN) {
        for (int64_t i = 0; i < experts; i++) all[i] = router.round(logistic(scores[i]));
    } else if (router.favour) {
        float sum = 0;
        for (int64_t i = 0; i < experts; i++) sum += all[i] = std::exp(scores[i] - highest);
        for (int64_t i = 0; i < experts; i++) all[i] /= sum;
    } else {
        std::copy_n(scores, experts, all);
    }
}

// The indices of the `each` largest of `count` numbers `wanted`, the largest first. Of equal ones the first comes first.
inline void choose(const float* wanted, int64_t count, int64_t each, int64_t* chosen) {
    int64_t held = 0;
    for (int64_t one = 0; one < count; one++) {
        int64_t at = held;
        for (; at > 0 && wanted[one] > wanted[chosen[at - 1]]; at--)
            if (at < each) chosen[at] = chosen[at - 1];
        if (at < each) chosen[at] = one;
        held = std::min(held + 1, each);
    }
}

// Sets `wanted` to minus infinity for the experts of all groups but the open ones.
template <typename T>
void close_groups(const Router<T>& router, float* wanted) {
    static thread_local std::vector<float> worth;
    static thread_local std::vector<int64_t> open;
    const int64_t groups = router.groups, size = router.scores.outputs / groups;
    worth.assign(groups, 0.0f);
    open.resize(router.open);
    for (int64_t group = 0; group < groups; group++) {
        int64_t best[2];
        choose(wanted + group * size, size, router.best, best);
        for (int64_t i = 0; i < router.best; i++) worth[group] += wanted[group * size + best[i]];
    }
    choose(worth.data(), groups, router.open, open.data());
    for (int64_t group = 0; group < groups; group++)
        if (std::find(open.begin(), open.end(), group) == open.end())
            std::fill_n(wanted + group * size, size, -std::numeric_limits<float>::infinity());
}

// The `shares` of the chosen experts for a softmax without favours, from the `scores`.
template <typename T>
void share_by_softmax(const Router<T>& router, const float* scores, float highest, const int64_t* chosen, float* shares) {
    const auto power = [&](int64_t expert) { return std::exp(scores[expert] - highest); };
    float sum = 0;
    for (int64_t i = 0; i < router.each; i++) sum += shares[i] = power(chosen[i]);
    if (router.counting == OF_ALL) {
        sum = 0;
        for (int64_t expert = 0; expert < router.scores.outputs; expert++) sum += power(expert);
    }
    for (int64_t i = 0; i < router.each; i++) shares[i] = router.round(shares[i] / sum * router.factor);
}

// The `shares` of the chosen experts, from `all` experts' weights.
template <typename T>
void share_by_counts(const Router<T>& router, const float* all, const int64_t* chosen, float* shares) {
    float sum = 0;
    for (int64_t i = 0; i < router.each; i++) sum += shares[i] = all[chosen[i]];
    const auto passed = [&](float number) { return router.counting < LOGISTIC ? number : router.round(number); };
    const bool shared = router.counting == LOGISTIC_OF_CHOSEN || router.counting == OF_CHOSEN;
    const float whole = shared ? passed(passed(sum) + router.least) : 1.0f;
    for (int64_t i = 0; i < router.each; i++) shares[i] = router.round(passed(shares[i] / whole) * router.factor);
}

// The `shares` of the chosen experts for `OF_NEAR`; `chosen` begins with the highest score.
template <typename T>
void share_by_near(const Router<T>& router, const float* scores, const int64_t* chosen, float* shares) {
    for (int64_t i = 0; i < router.each; i++) {
        const float most = scores[chosen[i]];
        float sum = 0;
        for (int64_t expert = 0; expert < router.scores.outputs; expert++) {
            const float further = router.round(router.round(most - scores[expert]) / std::max(std::abs(scores[expert]), most));
            const bool left = std::find(chosen, chosen + i, expert) == chosen + i;
            if (left && !(further > router.least)) sum += std::exp(scores[expert] - most);
        }
        shares[i] = router.round(1.0f / sum);
    }
}

// Chooses a row's experts. Its `scores` `[experts]` are those `made`, or exact ones, to which what adapters `made` is added.
template <typename T>
void route(const Router<T>& router, const T* made, float* scores, int64_t* chosen, float* shares) {
    static thread_local std::vector<float> all, wanted;
    const int64_t experts = router.scores.outputs;
    for (int64_t i = 0; i < experts; i++) scores[i] = widen(made[i]) + (router.exact ? scores[i] : 0.0f);
    const float highest = *std::max_element(scores, scores + experts);
    all.resize(experts);
    count_all(router, scores, highest, all.data());
    wanted = all;
    for (int64_t i = 0; i < experts && router.favour; i++) wanted[i] += router.favour[i];
    if (router.groups > 1) close_groups(router, wanted.data());
    choose(wanted.data(), experts, router.each, chosen);
    if (router.counting == OF_NEAR)
        share_by_near(router, scores, chosen, shares);
    else if (router.counting < LOGISTIC && !router.favour)
        share_by_softmax(router, scores, highest, chosen, shares);
    else
        share_by_counts(router, all.data(), chosen, shares);
    if (router.counts)
        for (int64_t i = 0; i < router.each; i++) shares[i] *= router.counts[chosen[i]];
}
