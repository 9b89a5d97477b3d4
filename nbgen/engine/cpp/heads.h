// Norms, clipping and rotary positions of a layer's heads before attention.

#pragma once

#include "decoder.h"

template <typename T>
void rotate(const DecoderLayer<T>& layer, const T* input, const float* cosines, const float* sines, T* output) {
    const auto& ways = layer.rounds ? turners<true, T> : turners<false, T>;
    const int64_t still = layer.still, end = still + layer.turned;
    std::copy_n(input, still, output);
    ways[layer.turns](input + still, cosines, sines, layer.turned, output + still);
    std::copy(input + end, input + layer.attention.dim, output + end);
}

template <typename T>
void clip(const DecoderLayer<T>& layer, T* head) {
    if (layer.clip == 0.0f) return;
    const float most = rounded<T>(layer.clip);
#pragma omp simd
    for (int64_t i = 0; i < layer.attention.dim; i++) narrow(std::min(std::max(widen(head[i]), -most), most), head + i);
}

// Makes a query or key as attention takes it of `made`, the product's numbers for this `head`; `work` is a buffer for one head.
template <typename T>
void normalize_and_rotate(const DecoderLayer<T>& layer, Norm<T> norm, int64_t head, const T* made, const float* cosines,
                          const float* sines, T* work, T* output) {
    const int64_t dim = layer.attention.dim;
    if (layer.each_head && norm) norm.weight += head * dim;
    if (layer.all_heads) norm = {};
    if (layer.turned_first) {
        rotate(layer, made, cosines, sines, work);
        return normalize_if(norm, work, dim, output);
    }
    normalize_if(norm, made, dim, work);
    clip(layer, work);
    rotate(layer, work, cosines, sines, output);
}
