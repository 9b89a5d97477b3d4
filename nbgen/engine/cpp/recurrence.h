// Recurrent layers, in place of attention or beside it: a causal convolution over a few tokens, followed by the gated delta rule
// (`delta.h`) or a selective state space (`scan.h`), or by neither (LFM2). Numbers are rounded where transformers' modules do so.

#pragma once

#include "delta.h"
#include "norms.h"
#include "scales.h"
#include "scan.h"

enum Rule : int64_t { DELTA_RULE, STATE_SPACE, CONVOLUTION_ALONE };

constexpr int64_t MOST_TAPS = 8;

// A convolution over `taps` tokens has a `kernel` `[taps, channels]` and a `bias` `[channels]` or null; its last inputs are kept in
// `past` `[…, channels, taps]`. Its input is the output of `mixed`: queries, keys and values for the delta
// rule; inputs, and what they write to and read from a state, for a state space. A rule has `heads` of `rows` numbers each,
// `groups` of heads that share `size` numbers, and `states` as in `Delta` and `Scan`. The output of `opening` gates its result,
// before (`opens_first`) or after a `norm` of every `normed` numbers, if there is one. A convolution alone gets the first third of
// the output of `mixed` times the last, and the second gates its result. For guesses, the convolution's inputs, the steps and the
// shares are kept (`held`, `held_steps`, `held_shares`). Where groups are `joined`, `mixed` gives each group's query, key, values
// and gates together, and `steps` its shares and steps. A state space's steps are clamped to `least` and `most`. Beside attention,
// `result` projects the gated result, which is then added.
template <typename T>
struct Recurrence {
    Counted<T> mixed, opening, steps, shares, result;
    Rule rule;
    int64_t taps, channels, heads, groups, rows, size, normed, opens_first, joined;
    const float *kernel, *bias, *rates, *direct;
    const T* step_bias;
    float least, most;
    Norm<T> norm;
    T* past;
    float* states;
    T *held, *held_steps, *held_shares;
};

// Splits a row of outputs of `joined` groups, which come group by group, into the layout of layers whose groups are not joined.
template <typename T>
void separate(const Recurrence<T>& layer, const T* made, const T* both, T* mixed, T* opening, T* steps, T* shares) {
    const int64_t heads = layer.heads / layer.groups, keys = layer.groups * layer.size, wide = heads * layer.rows;
    for (int64_t group = 0; group < layer.groups; group++) {
        const auto take = [](const T*& from, int64_t count, T* to) { std::copy_n(from, count, to), from += count; };
        take(made, layer.size, mixed + group * layer.size);
        take(made, layer.size, mixed + keys + group * layer.size);
        take(made, wide, mixed + 2 * keys + group * wide);
        take(made, wide, opening + group * wide);
        take(both, heads, shares + group * heads);
        take(both, heads, steps + group * heads);
    }
}

// Takes `rows` tokens of `count` sequences through a layer's recurrence: from the outputs of its products to `output`. `scratch`
// has room for two floats for each head of a row. With `again`, the rows are held guesses that have been accepted: they only
// advance the states.
template <typename T>
struct Remembered {
    const Recurrence<T>& layer;
    const Sequence* sequences;
    int64_t count, rows;
    T* mixed;
    const T *opening, *steps, *shares;
    float* scratch;
    T* output;
    bool again = false;

    static constexpr int64_t PHASES = 3;

    void run(Team::Member& member) const {
        const int64_t blocks = (layer.channels + BLOCK - 1) / BLOCK, convolved = count * blocks;
        member.each(convolved + (layer.rule == DELTA_RULE ? rows : 0), [&](int64_t unit) {
            if (unit >= convolved) return weigh(unit - convolved);
            const int64_t begin = unit % blocks * BLOCK;
            convolve(sequences[unit / blocks], begin, std::min(layer.channels, begin + BLOCK));
        });
        if (layer.rule == CONVOLUTION_ALONE) return;
        if (layer.rule == DELTA_RULE)
            correct(member);
        else
            scan(member);
        if (!again) member.each(rows, [&](int64_t row) { open(row); });
    }

  private:
    static constexpr int64_t BLOCK = 64;

    // Convolves the channels `begin` to `end` of a sequence's tokens: in place, or into the output for a convolution alone.
    void convolve(const Sequence& own, int64_t begin, int64_t end) const {
        const int64_t taps = layer.taps, some = end - begin;
        T* past = layer.past + (own.state * layer.channels + begin) * taps;
        float window[MOST_TAPS][BLOCK];
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t c = 0; c < some; c++) window[tap][c] = own.begins ? 0.0f : widen(past[c * taps + tap]);
        int64_t oldest = 0;
        for (int64_t token = own.first; token < own.end(); token++) {
            float sums[BLOCK];
            take(token, begin, end, window[oldest]);
            if (token >= own.guessed()) hold(own.held + token - own.guessed(), token, begin, end, window[oldest]);
            oldest = (oldest + 1) % taps;
            for (int64_t tap = 0; tap < taps && token + 1 == own.guessed(); tap++)
                for (int64_t c = 0; c < some; c++) narrow(window[(oldest + tap) % taps][c], past + c * taps + tap);
            for (int64_t c = 0; c < some; c++) sums[c] = layer.bias ? layer.bias[begin + c] : 0.0f;
            for (int64_t tap = 0; tap < taps; tap++) {
                const float *kernel = layer.kernel + tap * layer.channels + begin, *seen = window[(oldest + tap) % taps];
#pragma omp simd
                for (int64_t c = 0; c < some; c++) sums[c] += kernel[c] * seen[c];
            }
            put(token, begin, end, sums);
        }
    }

    // Keeps a guess's inputs of these channels and, with the first channels, its steps and shares.
    void hold(int64_t place, int64_t token, int64_t begin, int64_t end, const float* taken) const {
        for (int64_t c = begin; c < end; c++) narrow(taken[c - begin], layer.held + place * layer.channels + c);
        if (begin) return;
        for (const auto& [from, to] : {std::pair{steps, layer.held_steps}, std::pair{shares, layer.held_shares}})
            if (to) std::copy_n(from + token * layer.heads, layer.heads, to + place * layer.heads);
    }

    void take(int64_t token, int64_t begin, int64_t end, float* to) const {
        const int64_t width = layer.channels;
        if (layer.rule == CONVOLUTION_ALONE && !again) {
            const T *first = mixed + token * 3 * width, *last = first + 2 * width;
#pragma omp simd
            for (int64_t c = begin; c < end; c++) to[c - begin] = rounded<T>(widen(first[c]) * widen(last[c]));
        } else {
            const T* own = mixed + token * width;
#pragma omp simd
            for (int64_t c = begin; c < end; c++) to[c - begin] = widen(own[c]);
        }
    }

    void put(int64_t token, int64_t begin, int64_t end, const float* sums) const {
        const int64_t width = layer.channels;
        if (layer.rule == CONVOLUTION_ALONE) {
            if (again) return;
            const T* second = mixed + (token * 3 + 1) * width;
#pragma omp simd
            for (int64_t c = begin; c < end; c++)
                narrow(widen(second[c]) * rounded<T>(sums[c - begin]), output + token * width + c);
        } else {
            T* own = mixed + token * width;
#pragma omp simd
            for (int64_t c = begin; c < end; c++) narrow(silu(rounded<T>(sums[c - begin])), own + c);
        }
    }

    // For each head of a row: the logarithm of the factor by which its state fades, and the share of its correction.
    void weigh(int64_t row) const {
        float *decays = scratch + row * layer.heads, *given = decays + rows * layer.heads;
        for (int64_t head = 0; head < layer.heads; head++) {
            const int64_t at = row * layer.heads + head;
            decays[head] = layer.rates[head] * softplus(widen(steps[at]) + widen(layer.step_bias[head]));
            given[head] = rounded<T>(logistic(widen(shares[at])));
        }
    }

    void correct(Team::Member& member) const {
        const int64_t keys = layer.groups * layer.size;
        const auto from = [&](int64_t first) { return Tokens<T>{mixed + first, {0, layer.channels}}; };
        const Delta<T> rule = {count,      rows,        layer.groups,   layer.heads,
                               layer.size, layer.rows,  1,              1,
                               sequences,  from(0),     from(keys),     from(2 * keys),
                               scratch,    scratch + rows * layer.heads, layer.states, output};
        DeltaRule<T>(rule).run(member);
    }

    void scan(Team::Member& member) const {
        const int64_t inputs = layer.heads * layer.rows, written = layer.groups * layer.size;
        const auto from = [&](int64_t first) { return Tokens<T>{mixed + first, {0, layer.channels}}; };
        const Scan<T> states = {count,       rows,       layer.heads,  layer.groups,
                                layer.rows,  layer.size, 1,            sequences,
                                from(0),     from(inputs), from(inputs + written), steps,
                                layer.step_bias, 1,      layer.least,  layer.most,
                                layer.rates, layer.direct, layer.states, nullptr,
                                output};
        StateScan<T>(states).run(member);
    }

    void open(int64_t row) const {
        static thread_local std::vector<float> near;
        const int64_t width = layer.heads * layer.rows, normed = layer.normed;
        near.resize(normed);
        for (int64_t at = 0; at < width; at += normed) {
            T* own = output + row * width + at;
            const T* opens = opening + row * width + at;
            if (!layer.norm) {
#pragma omp simd
                for (int64_t i = 0; i < normed; i++) narrow(widen(own[i]) * silu(widen(opens[i])), own + i);
            } else if (layer.opens_first) {
                Norm<T> norm = layer.norm;
                norm.weight += at;
#pragma omp simd
                for (int64_t i = 0; i < normed; i++) near[i] = widen(own[i]) * silu(widen(opens[i]));
                normalize(norm, near.data(), normed, own);
            } else {
                normalize(layer.norm, own, normed, own);
#pragma omp simd
                for (int64_t i = 0; i < normed; i++) narrow(widen(own[i]) * silu(widen(opens[i])), own + i);
            }
        }
    }
};
