// Recurrent layers with a selective state space (Dao and Gu 2024, "Transformers are SSMs": Mamba 2). A head's state has a row of
// numbers for each of its inputs. With every token it fades, and the token's contribution is added.
//
// Rows are independent: they are shared out to a team, and stay in the cache while all tokens pass. A token's result is the same to
// the bit whatever tokens are computed with it.

#pragma once

#include <vector>

#include "team.h"
#include "tokens.h"
#include "vectors.h"

// Tokens `[batch, tokens]` of `count` sequences have `inputs` of `heads` heads with `rows` numbers each, and weights by which they
// write `into` a state and read `from` it (B and C), `size` numbers for each of the `groups` of heads. Their `steps`
// `[batch, tokens, heads]`, plus a `bias` `[heads]` or null, are made `positive` or not, and clamped; times their head's `rates`
// `[heads]` they say what is left of the `states` `[…, heads, rows, size]`, which become those after the last token. An input times
// its head's `direct` `[heads]`, if not null, is added to the result. Of `wide` and `output` one is null.
template <typename T>
struct Scan {
    int64_t count, tokens, heads, groups, rows, size, threads;
    const Sequence* sequences;
    Tokens<T> inputs, into, from;
    const T *steps, *bias;
    int64_t positive;
    float least, most;
    const float *rates, *direct;
    float* states;
    float* wide;
    T* output;
};

template <typename T>
class StateScan {
  public:
    explicit StateScan(const Scan<T>& scan) : scan_(scan) {}

    void run(Team::Member& member) const {
        const int64_t blocks = (scan_.rows + BLOCK - 1) / BLOCK;
        member.each(scan_.count * scan_.heads * blocks, [&](int64_t unit) {
            const int64_t first = unit % blocks * BLOCK, end = std::min(scan_.rows, first + BLOCK);
            rows(scan_.sequences[unit / blocks / scan_.heads], unit / blocks % scan_.heads, first, end);
        });
    }

  private:
    static constexpr int64_t BLOCK = 16;

    void rows(const Sequence& own, int64_t head, int64_t begin, int64_t end) const {
        static thread_local std::vector<float> near;
        const int64_t size = scan_.size, group = head * scan_.groups / scan_.heads * size;
        near.resize((2 + BLOCK) * size);
        float *into = near.data(), *from = into + size, *beside = from + size;
        float* states = scan_.states + ((own.state * scan_.heads + head) * scan_.rows + begin) * size;
        if (own.begins) std::fill_n(states, (end - begin) * size, 0.0f);
        for (int64_t token = own.first; token < own.end(); token++) {
            if (token == own.guessed()) states = std::copy_n(states, (end - begin) * size, beside) - (end - begin) * size;
            const T* inputs = scan_.inputs.at(own.batch, token) + head * scan_.rows;
            const T *writes = scan_.into.at(own.batch, token) + group, *reads = scan_.from.at(own.batch, token) + group;
            for (int64_t i = 0; i < size; i++) into[i] = widen(writes[i]);
            for (int64_t i = 0; i < size; i++) from[i] = widen(reads[i]);
            const int64_t place = (own.batch * scan_.tokens + token) * scan_.heads + head;
            const float step = step_of(place, head), left = std::exp(step * scan_.rates[head]);
            for (int64_t row = begin; row < end; row++) {
                const float input = widen(inputs[row]);
                float found = advance(states + (row - begin) * size, left, step * input, into, from);
                if (scan_.direct) found += scan_.direct[head] * input;
                if (scan_.wide)
                    scan_.wide[place * scan_.rows + row] = found;
                else
                    narrow(found, scan_.output + place * scan_.rows + row);
            }
        }
    }

    float step_of(int64_t place, int64_t head) const {
        float step = widen(scan_.steps[place]);
        if (scan_.bias) step = rounded<T>(step + widen(scan_.bias[head]));
        if (scan_.positive) step = rounded<T>(softplus(step));
        return rounded<T>(std::min(std::max(step, scan_.least), scan_.most));
    }

    // Advances a row's state by one token, and returns what the token reads from it.
    float advance(float* state, float left, float brought, const float* into, const float* from) const {
        Floats sum = {};
        const Floats fades = all_of(left), brings = all_of(brought);
        for (int64_t i = 0; i < scan_.size; i += LANES) {
            const Floats now = floats_at(state + i) * fades + brings * floats_at(into + i);
            *reinterpret_cast<Floats*>(state + i) = now;
            sum += now * floats_at(from + i);
        }
        float lanes[LANES];
        *reinterpret_cast<Floats*>(lanes) = sum;
        for (int64_t width = LANES / 2; width; width /= 2)
            for (int64_t i = 0; i < width; i++) lanes[i] += lanes[i + width];
        return lanes[0];
    }

    const Scan<T>& scan_;
};
