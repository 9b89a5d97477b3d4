// Recurrent layers by the gated delta rule (Yang et al. 2024, "Gated Delta Networks"): each head's state, `[keys, values]`, decays
// with every token, and is corrected towards giving the token's value for its key.
//
// Columns of a state are independent: they are distributed to a team, and stay in the cache while all tokens go by. A token's
// result is the same to the bit whatever tokens are computed with it.

#pragma once

#include <vector>

#include "team.h"
#include "tokens.h"
#include "vectors.h"

// Tokens `[batch, tokens]` of `count` sequences have queries and keys of `key_heads` heads, and values of `value_heads`, a multiple
// of these. `states` `[…, value_heads, key_dim, value_dim]` become those after the last token. Queries and keys are normalized
// first if `normalizes`. For each token and value head, `decays` are logs of state factors, `shares` factors of corrections.
template <typename T>
struct Delta {
    int64_t count, tokens, key_heads, value_heads, key_dim, value_dim, normalizes, threads;
    const Sequence* sequences;
    Tokens<T> queries, keys, values;
    const float *decays, *shares;
    float* states;
    T* output;
};

template <typename T>
class DeltaRule {
  public:
    explicit DeltaRule(const Delta<T>& rule) : rule_(rule) {}

    void run(Team::Member& member) const {
        const int64_t vectors = rule_.value_dim / LANES;
        if (vectors % 4 == 0 && rule_.tokens <= rule_.count)
            share_out<4>(member);
        else if (vectors % 2 == 0)
            share_out<2>(member);
        else
            share_out<1>(member);
    }

  private:
    template <int W>
    void share_out(Team::Member& member) const {
        const int64_t blocks = rule_.value_dim / (W * LANES), heads = rule_.value_heads;
        member.each(rule_.count * heads * blocks, [&](int64_t unit) {
            columns<W>(rule_.sequences[unit / blocks / heads], unit / blocks % heads, unit % blocks * W * LANES);
        });
    }

    // Goes through a sequence's tokens with `W` vectors of one head's columns, from the `first` on.
    template <int W>
    void columns(const Sequence& own, int64_t head, int64_t first) const {
        static thread_local std::vector<float> near;
        const int64_t dim = rule_.key_dim, width = rule_.value_dim, from = head * rule_.key_heads / rule_.value_heads * dim;
        near.resize(dim * (2 + W * LANES));
        float *query = near.data(), *key = query + dim, *beside = key + dim;
        float* state = rule_.states + (own.state * rule_.value_heads + head) * dim * width + first;
        int64_t row = width;
        if (own.begins)
            for (int64_t i = 0; i < dim; i++) std::fill_n(state + i * width, W * LANES, 0.0f);
        for (int64_t token = own.first; token < own.end(); token++) {
            if (token == own.guessed()) {
                for (int64_t i = 0; i < dim; i++) std::copy_n(state + i * width, W * LANES, beside + i * W * LANES);
                state = beside;
                row = W * LANES;
            }
            take(rule_.queries.at(own.batch, token) + from, 1.0f / std::sqrt(static_cast<float>(dim)), query);
            take(rule_.keys.at(own.batch, token) + from, 1.0f, key);
            const int64_t place = (own.batch * rule_.tokens + token) * rule_.value_heads + head;
            const float left = std::exp(rule_.decays[place]);
            step<W>(state, row, query, key, rule_.values.at(own.batch, token) + head * width + first, left,
                    rule_.shares[place], rule_.output + place * width + first);
        }
    }

    void take(const T* numbers, float scale, float* to) const {
        float sum = 0;
        for (int64_t i = 0; i < rule_.key_dim; i++) sum += widen(numbers[i]) * widen(numbers[i]);
        const float norm = rule_.normalizes ? 1.0f / std::sqrt(sum + 1e-6f) : 1.0f;
        for (int64_t i = 0; i < rule_.key_dim; i++) to[i] = widen(numbers[i]) * norm * scale;
    }

    // Updates the state, whose rows are `row` numbers apart, by one token, and writes the token's output.
    template <int W>
    void step(float* state, int64_t row, const float* query, const float* key, const T* value, float left, float share,
              T* output) const {
        Floats known[W] = {}, found[W] = {}, change[W];
        const Floats fades = all_of(left);
        for (int64_t i = 0; i < rule_.key_dim; i++)
#pragma GCC unroll 8
            for (int w = 0; w < W; w++) known[w] += floats_at(state + i * row + w * LANES) * fades * all_of(key[i]);
        float numbers[W * LANES];
        for (int64_t i = 0; i < W * LANES; i++) numbers[i] = widen(value[i]);
        for (int w = 0; w < W; w++) change[w] = (floats_at(numbers + w * LANES) - known[w]) * all_of(share);
        for (int64_t i = 0; i < rule_.key_dim; i++)
#pragma GCC unroll 8
            for (int w = 0; w < W; w++) {
                float* own = state + i * row + w * LANES;
                const Floats now = floats_at(own) * fades + change[w] * all_of(key[i]);
                *reinterpret_cast<Floats*>(own) = now;
                found[w] += now * all_of(query[i]);
            }
        for (int w = 0; w < W; w++) *reinterpret_cast<Floats*>(numbers + w * LANES) = found[w];
        for (int64_t i = 0; i < W * LANES; i++) narrow(numbers[i], output + i);
    }

    const Delta<T>& rule_;
};
