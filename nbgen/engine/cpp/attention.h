// Attention over paged keys and values, read where they lie: no copy, no padding.
//
// A decode's context is cut into chunks, computed apart and merged in order by their largest scores (FlashDecoding, Dao et
// al. 2023); chunks that several decodes have in common are read once for all. Prompts are cut into tiles of queries, which
// see the same chunks one after another. Which chunks there are depends on positions alone, so neither the number of threads
// nor how many tokens a step has of a sequence changes a bit of the result.

#pragma once

#include <optional>

#include "attention_tile.h"
#include "team.h"

// Merges one head's chunks, `stride` floats apart, into its output.
template <typename T>
void merge(const float* parts, int64_t chunks, int64_t stride, int64_t group, int64_t g, const AttentionLayer& layer,
           const float* sink, std::vector<float>& work, T* output) {
    const int64_t width = layer.value_dim;
    work.assign(width, 0.0f);
    float total = 0, largest = LOWEST;
    for (int64_t c = 0; c < chunks; c++) {
        const float* part = parts + c * stride;
        join(work.data(), total, largest, part + g * width, part[group * width + g], part[group * (width + 1) + g], width);
    }
    conclude(work.data(), total, largest, sink, width, output);
}

// A layer's attention of one step. Queries are `[T, heads, dim]`, the output is `[T, heads, value_dim]`, and `scratch` has
// room for `chunks * heads * (value_dim + 2)`.
template <typename T, typename Kept>
struct Attention {
    const Batch& batch;
    const AttentionLayer& layer;
    const T* query;
    const Kept *keys, *values;
    T* output;
    float* scratch;

    const int64_t group = layer.heads / layer.kv_heads, stride = group * (layer.value_dim + 2);
    const int64_t chunks = batch.chunks[batch.rows];

    // One member's part, in two phases.
    void run(Team::Member& member) const {
#ifdef TILES
        std::optional<OpenTiles> open;
        if (go_in_tiles<Operand<T>>()) open.emplace();
#endif
        std::vector<float> work;
        Room<T, Kept>& room = Room<T, Kept>::own();
        const int64_t units = batch.tasks * layer.kv_heads;
        member.each(units, [&](int64_t unit) {
            const Task& task = batch.task[unit % batch.tasks];
            const int64_t head = unit / batch.tasks;
            Tile<T, Kept> tile(batch, layer, task, room);
            tile.attend(query, head, first(unit), first(std::min(unit + 1, units - 1)));
            for (int64_t m = 0; m < tile.count(); m++)
                task.chunk < 0 ? finish(tile, m, head) : keep(tile, m, task.chunk, head);
        });
        member.each(batch.rows * layer.heads, [&](int64_t i) {
            const int64_t row = i / layer.heads, head = i % layer.heads;
            merge(part(row, 0, head / group), batch.chunks[row + 1] - batch.chunks[row], stride, group, head % group, layer,
                  layer.sinks ? layer.sinks + head : nullptr, work, output + i * layer.value_dim);
        });
    }

  private:
    // The first block that a unit reads.
    Block<Kept> first(int64_t unit) const {
        const Task& task = batch.task[unit % batch.tasks];
        const int64_t head = unit / batch.tasks * layer.slots;
        return {task.sequence, task.begin, task.end, keys + head * layer.dim, values + head * layer.value_dim};
    }

    float* part(int64_t row, int64_t chunk, int64_t head) const {
        return scratch + (head * chunks + batch.chunks[row] + chunk) * stride;
    }

    // Writes the output of a tile's query `m`, which has seen all its keys.
    void finish(const Tile<T, Kept>& tile, int64_t m, int64_t head) const {
        const int64_t number = head * group + m % group;
        conclude(tile.sums(m), tile.total(m), tile.largest(m), layer.sinks ? layer.sinks + number : nullptr,
                 layer.value_dim, output + (tile.row(m) * layer.heads + number) * layer.value_dim);
    }

    // Keeps the sums of a tile's query `m`, which has seen one chunk, for `merge`.
    void keep(const Tile<T, Kept>& tile, int64_t m, int64_t chunk, int64_t head) const {
        float* to = part(tile.row(m), chunk, head);
        const int64_t g = m % group;
        std::copy_n(tile.sums(m), layer.value_dim, to + g * layer.value_dim);
        to[group * layer.value_dim + g] = tile.total(m);
        to[group * (layer.value_dim + 1) + g] = tile.largest(m);
    }
};

// Calls `use` with a layer's `keys` and `values` as pointers to the type that they are kept in.
template <typename T, typename Use>
void with_kept(const AttentionLayer& layer, void* keys, void* values, const Use& use) {
    if constexpr (std::is_same_v<T, float>)
        if (layer.halves) return use(static_cast<Bfloat16*>(keys), static_cast<Bfloat16*>(values));
    use(static_cast<T*>(keys), static_cast<T*>(values));
}
