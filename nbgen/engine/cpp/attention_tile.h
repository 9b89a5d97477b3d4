// Attention of many queries over the same keys, which are read and packed once for all of them.
//
// Keys pass by in blocks, whose scores are merged into the running sums of a chunk (FlashAttention, Dao et al. 2022), and
// chunks are joined in order. Which blocks and chunks there are depends on positions alone: neither a tile's other queries
// nor how a prompt is cut changes a bit of a result.

#pragma once

#include "attention_lying.h"
#include "attention_room.h"
#include "row_folds.h"
#include "tile_sums.h"

// The queries of a task that share one key head: one row of the step after the other, each with its `group` of heads.
template <typename T, typename Kept>
class Tile {
  public:
    Tile(const Batch& batch, const AttentionLayer& layer, const Task& task, Room<T, Kept>& room)
        : batch_(batch), layer_(layer), task_(task), group_(layer.heads / layer.kv_heads), width_(padded(layer.value_dim)),
          depth_(depth_of<Operand<T>>(layer.dim)) {
        const int64_t rows = cuts(count(), STRIP) * STRIP;
        turned_ = go_in_tiles<Operand<T>>() && count() <= LANES;
        lies_ = !go_in_tiles<Operand<T>>() && count() <= FEW_QUERIES && may_lie<Kept>(layer);
        queries_ = at_least(room.queries, (turned_ ? 2 : 1) * rows * depth_);
        keys_ = at_least(room.keys, KEYS * depth_);
        std::fill_n(keys_ + KEYS * layer.dim, KEYS * (depth_ - layer.dim), Operand<T>{});
        values_ = at_least(room.values, KEYS * width_);
        own_ = {at_least(room.sums, rows * width_), at_least(room.totals, count()), at_least(room.largest, count())};
        if (task.chunk < 0)
            all_ = {at_least(room.all_sums, count() * width_), at_least(room.all_totals, count()),
                    at_least(room.all_largest, count())};
        else
            all_ = own_;
        nothing_ = at_least(room.nothing, layer.value_dim);
        fresh_ = at_least(room.fresh, count());
        firsts_ = at_least(room.firsts, count());
        ends_ = at_least(room.ends, count());
        for (int64_t m = 0; m < count(); m++) firsts_[m] = batch.firsts[row(m)], ends_[m] = std::min(batch.ends[row(m)], task.end);
    }

    // Attends to the task's blocks from the `first` on, and prefetches `next`, the first block of the next tile.
    void attend(const T* query, int64_t head, const Block<Kept>& first, const Block<Kept>& next) {
        for (int64_t m = 0; m < count(); m++) {
            const T* from = query + (row(m) * layer_.heads + head * group_ + m % group_) * layer_.dim;
            for (int64_t d = 0; d < layer_.dim; d++) convert(from[d], queries_ + m * depth_ + d);
            std::fill_n(queries_ + m * depth_ + layer_.dim, depth_ - layer_.dim, Operand<T>{});
        }
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (turned_) {
                pack_side(queries_, count(), depth_, queries_ + SIDE * depth_);
                queries_ += SIDE * depth_;
            }
#endif
        for (int64_t m = 0; m < count(); m += strip_of<Operand<T>>()) forget(m);
        if (is_whole()) {
            all_.forget(0, count());
            std::fill_n(all_.sums, count() * width_, 0.0f);
        }
        Slots slots(batch_, first);
        for (Block<Kept> block = first, after = first; block.begin < block.end; block = after) {
            after.begin += KEYS;
            const Block<Kept>& coming = after.begin < after.end ? after : next;
            const Slots ahead(batch_, coming);
            if (!lies_ && !turned_) pack_keys(block, slots);
            if (!lies_) pack_values(block, slots, coming, ahead);
            lies_ ? see_lying(block, slots, coming, ahead) : see(block, slots);
            slots = ahead;
        }
        if (is_whole()) return;
        for (int64_t m = 0; m < count(); m += strip_of<Operand<T>>())
            if (fresh(m)) std::fill_n(own_.sums + m * width_, strip_from(m) * width_, 0.0f);
    }

    int64_t count() const { return task_.count * group_; }
    int64_t row(int64_t m) const { return batch_.members[task_.offset + m / group_]; }
    const float* sums(int64_t m) const { return all_.sums + m * width_; }
    float total(int64_t m) const { return all_.totals[m]; }
    float largest(int64_t m) const { return all_.largest[m]; }

  private:
    // Whether the task covers all that its queries see, chunk after chunk.
    bool is_whole() const { return task_.chunk < 0; }

    // Whether a block is the last of a chunk that is joined with others.
    bool joins_after(const Block<Kept>& block) const {
        return is_whole() && ((block.begin + KEYS) % batch_.chunk == 0 || block.begin + KEYS >= block.end);
    }

    // The number of queries of the strip that begins with query `m`.
    int64_t strip_from(int64_t m) const { return std::min(strip_of<Operand<T>>(), count() - m); }

    // Whether a query's sums are still to be overwritten.
    char& fresh(int64_t m) const { return fresh_[m / strip_of<Operand<T>>()]; }

    // Begins a new chunk for a strip. Its first block will overwrite the sums.
    void forget(int64_t m) {
        own_.forget(m, strip_from(m));
        fresh(m) = true;
    }

    // Joins the chunk that ends with those before, for a strip.
    void join_chunk(int64_t first) {
        if (fresh(first)) return;
        for (int64_t m = first; m < first + strip_from(first); m++)
            join(all_.sums + m * width_, all_.totals[m], all_.largest[m], own_.sums + m * width_, own_.totals[m],
                 own_.largest[m], width_);
        forget(first);
    }

    // Adds a packed block of keys and values to the sums of all queries, strip after strip. In tiles, a strip is scored while the
    // one before is weighed, the one before that is added, and so on: what vectors have just written cannot be loaded into tiles
    // yet, nor the other way round.
    void see(const Block<Kept>& block, const Slots& slots) {
        const int64_t most = strip_of<Operand<T>>(), lag = go_in_tiles<Operand<T>>() ? most : 0;
        alignas(64) float scores[2][STRIP * KEYS];
        alignas(64) Operand<T> weights[2][STRIP * KEYS];
        const auto sees = [&](int64_t m) { return m >= 0 && m < count() && any_sees(m, strip_from(m), block.begin); };
        for (int64_t m = 0; m < count() + 3 * lag; m += most) {
            const int64_t weighed = m - lag, added = weighed - lag, joined = added - lag;
            if (sees(m)) score(block, slots, m, scores[m / most % 2]);
            if (sees(weighed)) weigh_strip(weighed, block.begin, scores[weighed / most % 2], weights[weighed / most % 2]);
            if (sees(added)) add(added, weights[added / most % 2]);
            if (joins_after(block) && joined >= 0 && joined < count()) join_chunk(joined);
        }
    }

    // The same for a few queries and a block that is not packed; prefetches the next.
    void see_lying(const Block<Kept>& block, const Slots& slots, const Block<Kept>& coming, const Slots& ahead) {
        alignas(64) float scores[FEW_QUERIES * KEYS];
        alignas(64) Operand<T> weights[FEW_QUERIES * KEYS];
        const Places<Kept> own(layer_, block, slots), next(layer_, coming, ahead);
        const auto see = [&](auto few) {
            score_lying<few()>(queries_, layer_.dim, own.keys, slots.count, next.keys, scores);
            weigh(0, few(), block.begin, scores, weights);
            const bool first = std::exchange(fresh(0), false);
            const auto add = first ? add_lying<few(), true, Operand<T>, Kept> : add_lying<few(), false, Operand<T>, Kept>;
            add(weights, own.values, next.values, own_.sums, width_);
        };
        if (any_sees(0, count(), block.begin)) with_few(count(), see);
        if (joins_after(block)) join_chunk(0);
    }

    void score(const Block<Kept>& block, const Slots& slots, int64_t m, float* scores) {
        if (turned_) return score_turned(block, slots, scores);
        add_strip<true>(queries_ + m * depth_, strip_from(m), keys_, depth_, scores, KEYS);
    }

    void weigh_strip(int64_t m, int64_t begin, float* scores, Operand<T>* weights) {
        const int64_t some = strip_from(m);
        for (int64_t i = 0; i < some; i += LANES)
            weigh(m + i, std::min(LANES, some - i), begin, scores + i * KEYS, weights + i * KEYS);
    }

    void add(int64_t m, const Operand<T>* weights) {
        const bool first = std::exchange(fresh(m), false);
        const auto add = first ? add_strip<true, Operand<T>> : add_strip<false, Operand<T>>;
        add(weights, strip_from(m), values_, KEYS, own_.sums + m * width_, width_);
    }

    // Packs a block's keys.
    void pack_keys(const Block<Kept>& block, const Slots& slots) {
        for (int64_t k = 0; k < slots.count; k += LANES) {
            for (int64_t i = k + LANES; i < std::min(k + 2 * LANES, slots.count); i++)
                fetch<fetch_soon>(block.keys + slots.of[i] * layer_.dim, layer_.dim);
            const Kept* columns[LANES];
            for (int64_t l = 0; l < LANES; l++)
                columns[l] = block.keys + slots.of[std::min(k + l, slots.count - 1)] * layer_.dim;
            pack_columns(columns, layer_.dim, k, keys_);
        }
    }

    // The same for its values, while prefetching all of the `next` block. Values beyond the task's end are replaced by `nothing_`:
    // they were never written, and may be numbers that no weight makes 0.
    void pack_values(const Block<Kept>& block, const Slots& slots, const Block<Kept>& next, const Slots& ahead) {
        constexpr int64_t PAIR = DEPTH<Operand<T>>;
        for (int64_t k = 0; k < KEYS; k += PAIR) {
            const Kept* rows[PAIR];
            for (int64_t i = 0; i < PAIR; i++)
                rows[i] = k + i < slots.count ? block.values + slots.of[k + i] * layer_.value_dim : nothing_;
            for (int64_t i = k; i < std::min(k + PAIR, ahead.count); i++) {
                fetch<fetch_line>(next.values + ahead.of[i] * layer_.value_dim, layer_.value_dim);
                fetch<fetch_line>(next.keys + ahead.of[i] * layer_.dim, layer_.dim);
            }
            for (int64_t i = k + LANES; i < std::min(k + LANES + PAIR, slots.count); i++)
                fetch<fetch_soon>(block.values + slots.of[i] * layer_.value_dim, layer_.value_dim);
            pack_rows(rows, layer_.value_dim, KEYS, k, values_);
        }
    }

    // Scores a block's keys, which are read where they lie, for a few queries, which are packed.
    void score_turned([[maybe_unused]] const Block<Kept>& block, [[maybe_unused]] const Slots& slots, [[maybe_unused]] float* to) {
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            for (int64_t k = 0; k < slots.count; k += SIDE) {
                const Bfloat16* keys = keys_beside(block, slots, k);
                multiply_turned(keys, queries_, depth_, count(), to + k);
            }
#endif
    }

    // A tile of keys of a block, from the `first` on, with no others between them: where they lie or, if need be, in a copy.
    const Kept* keys_beside(const Block<Kept>& block, const Slots& slots, int64_t first) const {
        const int64_t slot = slots.of[first], last = std::min(first + LANES, slots.count) - 1;
        if (depth_ == layer_.dim && batch_.block_size % LANES == 0 && slot % LANES == 0 && slots.of[last] - slot == last - first)
            return block.keys + slot * layer_.dim;
        for (int64_t i = first; i <= last; i++)
            std::copy_n(block.keys + slots.of[i] * layer_.dim, layer_.dim, keys_ + (i - first) * depth_);
        return keys_;
    }

    // If not inlined, this would be a function without effect, whose calls compilers leave out.
    template <void (*FETCH)(const void*)>
    [[gnu::always_inline]] static void fetch(const Kept* numbers, int64_t count) {
        for (int64_t i = 0; i < count; i += VECTOR / sizeof(Kept)) FETCH(numbers + i);
    }

#ifdef __AVX512F__
    // Makes weights of the scores of `some` queries from `m` on, for the block that begins at `begin`. Where the largest score has
    // grown, earlier sums shrink.
    void weigh(int64_t m, int64_t some, int64_t begin, float* scores, Operand<T>* weights) {
        constexpr int64_t PARTS = KEYS / LANES;
        const auto largest_of = [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); };
        const auto sum_of = [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); };
        const __mmask16 rows = static_cast<__mmask16>((1 << some) - 1);
        const __m512 scaling = _mm512_set1_ps(layer_.softcap > 0 ? 1.0f : layer_.scaling);
        __m512 tops[LANES], sums[LANES];
        uint64_t visible[LANES];
        const auto scaled = [&](int64_t i, int64_t part) {
            return _mm512_mul_ps(_mm512_loadu_ps(scores + i * KEYS + part * LANES), scaling);
        };
        const auto seen_of = [&](int64_t i, int64_t part) { return static_cast<__mmask16>(visible[i] >> (part * LANES)); };
        for (int64_t i = 0; i < LANES; i++) tops[i] = _mm512_set1_ps(LOWEST), sums[i] = _mm512_setzero_ps();
        for (int64_t i = 0; i < some; i++) {
            visible[i] = seen_bits(m + i, begin);
            for (int k = 0; k < KEYS && layer_.softcap > 0; k++) scores[i * KEYS + k] *= layer_.scaling;
            cap(layer_.softcap, scores + i * KEYS, KEYS);
            for (int64_t j = 0; j < PARTS; j++)
                tops[i] = _mm512_mask_max_ps(tops[i], seen_of(i, j), tops[i], scaled(i, j));
        }
        const __m512 before = _mm512_maskz_loadu_ps(rows, own_.largest + m);
        const __m512 largest = largest_of(before, fold_rows(largest_of, tops));
        const __m512 share = exponentials(_mm512_sub_ps(before, largest));
        _mm512_mask_storeu_ps(own_.largest + m, rows, largest);
        for (int64_t i = 0; i < some; i++) {
            const __m512 most = _mm512_set1_ps(own_.largest[m + i]);
            const auto weight = [&](int64_t j) {
                return _mm512_maskz_mov_ps(seen_of(i, j), exponentials(_mm512_sub_ps(scaled(i, j), most)));
            };
            for (int64_t j = 0; j < PARTS; j += 2) {
                const __m512 left = weight(j), right = weight(j + 1);
                sums[i] = sum_of(j ? sum_of(sums[i], left) : left, right);
                narrow_two(left, right, weights + i * KEYS + j * LANES);
            }
        }
        const __m512 total = _mm512_maskz_loadu_ps(rows, own_.totals + m);
        _mm512_mask_storeu_ps(own_.totals + m, rows, _mm512_fmadd_ps(total, share, fold_rows(sum_of, sums)));
        if (!fresh(m)) shrink(m, rows & _mm512_cmp_ps_mask(share, _mm512_set1_ps(1.0f), _CMP_LT_OQ), share);
    }

    // Multiplies the sums of some queries from `m` on by their shares.
    void shrink(int64_t m, uint32_t some, __m512 shares) {
        alignas(64) float all[LANES];
        _mm512_store_ps(all, shares);
        for (; some; some &= some - 1) {
            const int i = __builtin_ctz(some);
            float* own = own_.sums + (m + i) * width_;
            for (int64_t d = 0; d < width_; d++) own[d] *= all[i];
        }
    }

    // Of each key of the block that begins at `begin`, whether a query sees it.
    uint64_t seen_bits(int64_t m, int64_t begin) const {
        const auto [first, end] = seen(m, begin);
        const auto below = [](int key) { return key < KEYS ? (uint64_t{1} << key) - 1 : ~uint64_t{0}; };
        return below(end) & ~below(first);
    }
#else
    // Makes weights of the scores of `some` queries from `m` on, for the block that begins at `begin`. Where the largest score has
    // grown, earlier sums shrink. One query's operations wait for each other, so each loop does one for all queries.
    void weigh(int64_t m, int64_t some, int64_t begin, float* scores, Operand<T>* weights) {
        const float scaling = layer_.scaling;
        float *largest = own_.largest + m, before[STRIP];
        for (int64_t i = 0; i < some; i++) {
            float* own = scores + i * KEYS;
            for (int k = 0; k < KEYS; k++) own[k] *= scaling;
            cap(layer_.softcap, own, KEYS);
            leave(m + i, begin, LOWEST, own);
            before[i] = largest[i];
            largest[i] = std::max(before[i], fold([](auto a, auto b) { return a < b ? b : a; }, own));
        }
        for (int64_t i = 0; i < some; i++) {
            float* own = scores + i * KEYS;
            const float most = largest[i];
            for (int k = 0; k < KEYS; k++) own[k] = exponential(own[k] - most);
            leave(m + i, begin, 0, own);
        }
        narrow_all(scores, some * KEYS, weights);
        for (int64_t i = 0; i < some; i++) {
            const float share = exponential(before[i] - largest[i]);
            float *sums = own_.sums + (m + i) * width_, &total = own_.totals[m + i];
            total = total * share + fold([](auto a, auto b) { return a + b; }, scores + i * KEYS);
            if (share < 1 && !fresh(m + i))
                for (int64_t d = 0; d < width_; d++) sums[d] *= share;
        }
    }

    // Of a query's numbers for the block that begins at `begin`, keeps those of keys that it sees, and sets all others to `other`.
    void leave(int64_t m, int64_t begin, float other, float* numbers) const {
        if (const auto [first, end] = seen(m, begin); first > 0 || end < KEYS)
            for (int k = 0; k < KEYS; k++) numbers[k] = k >= first && k < end ? numbers[k] : other;
    }

    // Joins all numbers of a block into one: in vectors first, then the vector's halves, again and again.
    template <typename Join>
    static float fold(const Join& join, const float* numbers) {
        Floats all = *reinterpret_cast<const Floats*>(numbers);
        for (int j = LANES; j < KEYS; j += LANES) all = join(all, *reinterpret_cast<const Floats*>(numbers + j));
        float lanes[LANES];
        std::memcpy(lanes, &all, sizeof lanes);
#pragma GCC unroll 8
        for (int half = LANES / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++) lanes[l] = join(lanes[l], lanes[l + half]);
        return lanes[0];
    }
#endif

    // The first and one past the last key that a query sees in the block that begins at `begin`.
    std::pair<int, int> seen(int64_t m, int64_t begin) const {
        return {std::clamp<int64_t>(firsts_[m] - begin, 0, KEYS), std::clamp<int64_t>(ends_[m] - begin, 0, KEYS)};
    }

    // Whether any of `some` queries from `m` on sees a key of that block.
    bool any_sees(int64_t m, int64_t some, int64_t begin) const {
        for (int64_t i = m; i < m + some; i++)
            if (const auto [first, end] = seen(i, begin); first < end) return true;
        return false;
    }

    const Batch& batch_;
    const AttentionLayer& layer_;
    const Task& task_;
    int64_t group_, width_, depth_;  // widths and depths are padded
    bool turned_, lies_;             // whether keys lie in rows of a tile, and queries in columns; whether blocks are not packed
    Operand<T> *queries_, *keys_, *values_;
    Seen own_, all_;  // of the present chunk, and of all that are joined
    const Kept* nothing_;
    char* fresh_;  // whether a strip's sums are still to be overwritten, by the strip's number
    int64_t *firsts_, *ends_;  // positions that each query sees, one past the last
};
