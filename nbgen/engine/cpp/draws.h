// Samples tokens from filtered distributions, row by row: the same tokens as `draws.py` does with torch.
//
// A row's random numbers are hashes of its seed, position and token ids. Nothing is sorted: tokens that a filter keeps come before
// all others. So if the winner is not kept, it and all tokens that do not come before it are out, and the rest race again.

#pragma once

#include "numbers.h"

// How to sample from one `row` of scores. A `top_k` of -1, a `top_p` of 1 and a `min_p` of 0 are no limits.
struct Draw {
    int64_t row, seed, position, top_k;
    double temperature, top_p, min_p;
};

// A token, whose `weight` is its probability divided by that of the likeliest.
struct Token {
    float weight;
    int64_t id;

    bool before(const Token& other) const { return weight > other.weight || (weight == other.weight && id < other.id); }
};

// The exponential race (equal to Gumbel-max): a token's time is an exponential variate over its weight, and the shortest wins.
class Race {
  public:
    explicit Race(const Draw& draw) : base_(mix(draw.seed + draw.position * GOLDEN)) {}

    // The winner among the tokens of `weights` `[vocab]` that come before `end`. A variate is at least 1 minus its uniform number,
    // and that bound nearly always shows that a token does not win.
    Token winner(const float* weights, int64_t vocab, const Token& end) const {
        Token first{0, 0};
        double best = 0;
        for (int64_t begin = 0; begin < vocab; begin += BLOCK) {
            const int64_t stop = std::min(vocab, begin + BLOCK);
            int64_t close = 0;
#pragma omp simd reduction(+ : close)
            for (int64_t id = begin; id < stop; id++)
                close += (weights[id] >= end.weight) & (weights[id] > best * lack(id));
            for (int64_t id = begin; close && id < stop; id++) {
                const Token one{weights[id], id};
                const double speed = one.weight / -std::log1p(-lack(id));
                if (speed > best && one.before(end)) best = speed, first = one;
            }
        }
        return first;
    }

  private:
    static constexpr int64_t BLOCK = 64;
    static constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;  // this and what follows: splitmix64 (Steele, Lea and Flood 2014)

    static uint64_t mix(uint64_t x) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
        return x ^ (x >> 31);
    }

    // 1 minus the token's uniform number.
    double lack(uint64_t id) const {
        const int64_t bits = mix(base_ + id * GOLDEN) >> 11;
        return ((int64_t{1} << 53) - bits - 0.5) * 0x1p-53;
    }

    const uint64_t base_;
};

// Makes the `weights` of one row of `scores` `[vocab]`, the greatest of which is finite.
inline void weigh(const float* scores, int64_t vocab, float temperature, float* weights) {
    float most = scores[0];
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < vocab; i++) most = std::max(most, scores[i]);
#pragma omp simd
    for (int64_t i = 0; i < vocab; i++) {
        const float below = (scores[i] - most) / temperature;
        weights[i] = below < -87.0f ? 0.0f : exponential(below);
    }
}

// A number of tokens, and the sum of their weights.
struct Part {
    int64_t count;
    double mass;
};

inline Part before(const float* weights, int64_t vocab, const Token& end) {
    int64_t count = 0;
    double mass = 0;
#pragma omp simd reduction(+ : count, mass)
    for (int64_t id = 0; id < vocab; id++) {
        const bool counts = Token{weights[id], id}.before(end);
        count += counts;
        mass += counts ? weights[id] : 0.0f;
    }
    return {count, mass};
}

// The token sampled from one row of scores; `weights` `[vocab]` is a buffer.
inline int64_t drawn(const Draw& draw, const float* scores, int64_t vocab, float* weights) {
    weigh(scores, vocab, draw.temperature, weights);
    const Race race(draw);
    const bool limited = draw.top_k != -1 || draw.top_p < 1;
    const int64_t count = draw.top_k < 1 ? vocab : draw.top_k;  // no token comes before the likeliest, so the loop ends
    const double mass = draw.top_p < 1 ? draw.top_p * before(weights, vocab, {0, 0}).mass : vocab;  // no weight exceeds 1
    for (Token end{static_cast<float>(draw.min_p), vocab};;) {
        const Token winner = race.winner(weights, vocab, end);
        if (!limited) return winner.id;
        const Part part = before(weights, vocab, winner);
        if (part.count < count && part.mass <= mass) return winner.id;
        end = winner;
    }
}
