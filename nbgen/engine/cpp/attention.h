// Attention of one new token a sequence over paged keys and values, read where they lie: no copy, no padding.
//
// A context is cut into chunks, computed apart and merged in order by their largest scores (FlashDecoding, Dao et al.
// 2023). Which chunks there are depends on the sequence alone, so neither what runs beside it nor the number
// of threads changes a bit of the result. Plain C++ that compilers vectorise.

#pragma once

#include "numbers.h"
#include "team.h"

constexpr float LOWEST = -1e30f;

// What all layers of a step share. `tables` [rows, blocks] are block numbers, the tokens seen are `firsts` to `lengths`,
// `chunk` of them in each chunk, and row r's chunks of each key head are `chunks[r]` to `chunks[r + 1]` of all, whose rows
// are `owners`. Queries and outputs are rows `places`.
struct Batch {
    int64_t rows, blocks, block_size, threads, chunk;
    const int32_t* tables;
    const int64_t* firsts;
    const int64_t* lengths;
    const int64_t* chunks;
    const int64_t* owners;
    const int64_t* places;
};

// A layer: a head's slots stand side by side, `slots` of them. No soft cap is 0, no sinks are null.
struct AttentionLayer {
    int64_t heads, kv_heads, dim, value_dim, slots;
    float scaling, softcap;
    const float* sinks;
};

// A chunk's part for the `group` heads of one key head: values weighted, the weights' sum and the largest score of each.
template <typename T>
void attend_chunk(const Batch& batch, const AttentionLayer& layer, const T* query, const T* keys, const T* values, int64_t row,
                  int64_t begin, int64_t end, std::vector<float>& work, float* part) {
    const int64_t group = layer.heads / layer.kv_heads, dim = layer.dim, width = layer.value_dim;
    const int32_t* table = batch.tables + row * batch.blocks;
    float* wide = work.data();
    float* scores = wide + group * dim;
    float* token = scores + group * batch.chunk;
    for (int64_t i = 0; i < group * dim; i++) wide[i] = widen(query[i]) * layer.scaling;
    for (int64_t position = begin; position < end; position++) {
        const T* key = keys + (table[position / batch.block_size] * batch.block_size + position % batch.block_size) * dim;
        for (int64_t d = 0; d < dim; d++) token[d] = widen(key[d]);
        for (int64_t g = 0; g < group; g++) {
            const float* head = wide + g * dim;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t d = 0; d < dim; d++) sum += head[d] * token[d];
            scores[g * batch.chunk + position - begin] = sum;
        }
    }
    float* sums = part + group * width;
    float* largest = sums + group;
    for (int64_t g = 0; g < group; g++) {
        float *row_scores = scores + g * batch.chunk, most = LOWEST, sum = 0;
        if (layer.softcap > 0)
            for (int64_t i = 0; i < end - begin; i++)
                row_scores[i] = layer.softcap * std::tanh(row_scores[i] / layer.softcap);
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < end - begin; i++) most = std::max(most, row_scores[i]);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < end - begin; i++) {
            row_scores[i] = exponential(row_scores[i] - most);
            sum += row_scores[i];
        }
        sums[g] = sum;
        largest[g] = most;
    }
    std::fill(part, part + group * width, 0.0f);
    for (int64_t position = begin; position < end; position++) {
        const T* value =
            values + (table[position / batch.block_size] * batch.block_size + position % batch.block_size) * width;
        for (int64_t d = 0; d < width; d++) token[d] = widen(value[d]);
        for (int64_t g = 0; g < group; g++) {
            float weight = scores[g * batch.chunk + position - begin];
            float* output = part + g * width;
#pragma omp simd
            for (int64_t d = 0; d < width; d++) output[d] += weight * token[d];
        }
    }
}

// One head's chunks, `stride` floats apart, into its output.
template <typename T>
void merge(const float* parts, int64_t chunks, int64_t stride, int64_t group, int64_t g, const AttentionLayer& layer,
           const float* sink, std::vector<float>& work, T* output) {
    const int64_t width = layer.value_dim;
    float most = sink ? *sink : LOWEST;
    for (int64_t c = 0; c < chunks; c++) most = std::max(most, parts[c * stride + group * (width + 1) + g]);
    float sum = sink ? exponential(*sink - most) : 0;
    std::fill(work.begin(), work.begin() + width, 0.0f);
    for (int64_t c = 0; c < chunks; c++) {
        const float* part = parts + c * stride;
        float share = exponential(part[group * (width + 1) + g] - most);
        sum += share * part[group * width + g];
#pragma omp simd
        for (int64_t d = 0; d < width; d++) work[d] += share * part[g * width + d];
    }
    for (int64_t d = 0; d < width; d++) narrow(work[d] / sum, output + d);
}

// One member's part, in two phases. `scratch` is `chunks * heads * (value_dim + 2)` floats.
template <typename T>
void attend(Team::Member& member, const Batch& batch, const AttentionLayer& layer, const T* query, const T* keys,
            const T* values, T* output, float* scratch) {
    const int64_t group = layer.heads / layer.kv_heads, stride = group * (layer.value_dim + 2);
    const int64_t chunks = batch.chunks[batch.rows];
    std::vector<float> work(group * (layer.dim + batch.chunk) + std::max(layer.dim, layer.value_dim));
    member.each(chunks * layer.kv_heads, [&](int64_t task) {
        const int64_t head = task / chunks, chunk = task % chunks, row = batch.owners[chunk];
        const int64_t begin = batch.firsts[row] + (chunk - batch.chunks[row]) * batch.chunk;
        attend_chunk(batch, layer, query + (batch.places[row] * layer.heads + head * group) * layer.dim,
                     keys + head * layer.slots * layer.dim, values + head * layer.slots * layer.value_dim, row, begin,
                     std::min(begin + batch.chunk, batch.lengths[row]), work, scratch + task * stride);
    });
    member.each(batch.rows * layer.heads, [&](int64_t i) {
        const int64_t row = i / layer.heads, head = i % layer.heads;
        const float* parts = scratch + (head / group * chunks + batch.chunks[row]) * stride;
        merge(parts, batch.chunks[row + 1] - batch.chunks[row], stride, group, head % group, layer,
              layer.sinks ? layer.sinks + head : nullptr, work,
              output + (batch.places[row] * layer.heads + head) * layer.value_dim);
    });
}
