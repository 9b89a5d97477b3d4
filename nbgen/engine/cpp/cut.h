// Which outputs of a linear layer one unit of a team's (threads') work computes.
//
// For many rows, a unit is a panel of adjacent outputs. A few rows wait for memory: for them, a unit is a piece of each quarter of
// the outputs, and the next unit reads on in all four. A processor's own prefetching ends with a page of memory, and in the four
// quarters pages end at different moments.

#pragma once

#include <algorithm>
#include <cstdint>

constexpr int64_t PANEL = 32;  // outputs whose weights stay in the second-level cache while all rows go by
constexpr int64_t PIECES = 4;
constexpr int64_t PIECE = 16;  // outputs: fewer would be less than a vector where they are activated

// Outputs from `begin` on, in `pieces` of `width`, whose beginnings are `apart` from each other.
struct Cut {
    int64_t begin, width, apart = 0, pieces = 1;

    // Calls `work(begin, end)` for each piece.
    template <typename Work>
    void each(const Work& work) const {
        for (int64_t piece = 0, at = begin; piece < pieces; piece++, at += apart) work(at, at + width);
    }
};

// How many units of `some` outputs there are.
inline int64_t cuts(int64_t outputs, int64_t some) { return (outputs + some - 1) / some; }

inline Cut side_by_side(int64_t outputs, int64_t unit, int64_t some) {
    return {unit * some, std::min(some, outputs - unit * some)};
}

// A unit of `PIECES * PIECE` outputs; those left over are a unit of their own.
inline Cut in_pieces(int64_t outputs, int64_t unit) {
    const int64_t whole = outputs / (PIECES * PIECE);
    return unit < whole ? Cut{unit * PIECE, PIECE, whole * PIECE, PIECES} : side_by_side(outputs, unit, PIECES * PIECE);
}
