// The buffers of attention's tiles. Does not know what they hold.

#pragma once

#include <vector>

#include "aligned.h"
#include "packed.h"

// A thread's buffers for its tiles, which stay from one tile to the next. Keys and values are `Kept` in another type than T where
// that takes less memory.
template <typename T, typename Kept>
struct Room {
    Aligned<Operand<T>> queries, keys, values;
    Aligned<float> sums, all_sums;
    std::vector<float> totals, largest, all_totals, all_largest;
    std::vector<int64_t> firsts, ends;
    std::vector<char> fresh;
    std::vector<Kept> nothing;

    static Room& own() {
        thread_local Room room;
        return room;
    }
};
