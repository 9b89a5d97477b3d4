// What a step's attention is made of: tasks, blocks of keys and values, and running sums that are joined.

#pragma once

#include <algorithm>
#include <cstdint>

#include "numbers.h"

constexpr float LOWEST = -1e30f;
constexpr int64_t KEYS = 64;  // of a block

// What all layers of a step share. Row r of the step is a new token, which sees its sequence's positions `firsts[r]` to
// `ends[r]`. Contexts are cut into chunks of `chunk` positions. The first `rows` are decodes; the chunks of row r have the
// numbers `chunks[r]` to `chunks[r + 1]`. `tables` `[sequences, blocks]` are block numbers in the KV cache.
struct Task;
struct Batch {
    int64_t rows, tasks, blocks, block_size, threads, chunk;
    const int64_t* tables;
    const int64_t* firsts;
    const int64_t* ends;
    const int64_t* chunks;
    const int64_t* members;
    const Task* task;
};

// Attention of the rows `members[offset]` to `members[offset + count]` to the positions `begin` to `end` of a sequence. These
// are all that the rows see, or one chunk of it if `chunk` is not negative.
struct Task {
    int64_t sequence, offset, count, begin, end, chunk;
};

// A layer's attention. In the cache a head's `slots` lie side by side; if `halves`, keys and values are bfloat16 there, and else of
// the type that the layer computes in. Without a soft cap `softcap` is 0; `sinks` may be null.
struct AttentionLayer {
    int64_t heads, kv_heads, dim, value_dim, slots, halves;
    float scaling, softcap;
    const float* sinks;
};

// A block of keys and values: the positions of a sequence from `begin` on, for a task that ends at `end`. `keys` and `values`
// are all those of one head, `[slots, dim]`.
template <typename Kept>
struct Block {
    int64_t sequence, begin, end;
    const Kept *keys, *values;
};

// The cache slots that hold the `count` positions of a block.
struct Slots {
    int64_t count, of[KEYS];

    template <typename Kept>
    Slots(const Batch& batch, const Block<Kept>& block) : count(std::min(KEYS, block.end - block.begin)) {
        const int64_t size = batch.block_size, *page = batch.tables + block.sequence * batch.blocks + block.begin / size;
        for (int64_t i = 0, within = block.begin % size; i < count; i++, within++) {
            if (within == size) within = 0, page++;
            of[i] = *page * size + within;
        }
    }
};

// Running sums of queries over some keys: the `largest` score, the `sums` of values, each weighed by the exponential of its
// score minus the `largest`, and the `totals` of weights.
struct Seen {
    float *sums, *totals, *largest;

    // Begins anew for `count` queries from `first` on, but for their sums.
    void forget(int64_t first, int64_t count) const {
        std::fill_n(totals + first, count, 0.0f);
        std::fill_n(largest + first, count, LOWEST);
    }
};

// Joins one query's running sums with those of the next chunk. Neither this nor `conclude` is inlined, so that prompts and
// decodes get the same bits.
[[gnu::noinline]] inline void join(float* sums, float& total, float& largest, const float* more, float more_total,
                                   float more_largest, int64_t width) {
    const float most = std::max(largest, more_largest);
    const float share = exponential(largest - most), rest = exponential(more_largest - most);
#pragma omp simd
    for (int64_t d = 0; d < width; d++) sums[d] = sums[d] * share + more[d] * rest;
    total = total * share + more_total * rest;
    largest = most;
}

// Makes the output of a query that has seen all its keys; adds its `sink`, unless null, to the total of weights.
template <typename T>
[[gnu::noinline]] void conclude(const float* sums, float total, float largest, const float* sink, int64_t width, T* output) {
    const float most = sink ? std::max(*sink, largest) : largest;
    const float share = exponential(largest - most);
    const float each = share / (total * share + (sink ? exponential(*sink - most) : 0.0f));
    for (int64_t d = 0; d < width; d++) narrow(sums[d] * each, output + d);
}

inline void cap(float softcap, float* scores, int64_t count) {
    if (softcap > 0)
        for (int64_t i = 0; i < count; i++) scores[i] = softcap * tangent(scores[i] / softcap);
}
