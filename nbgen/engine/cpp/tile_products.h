// Products of rows with a weight of any kind in tiles, where the processor has them.
//
// Few rows are packed, or else weights. Both ways a sum takes the inputs in order, 32 at a time, so that its bits do not depend on
// the rows beside it, nor on how the work is cut.

#pragma once

#include "tile_blocks.h"
#include "tile_rows.h"

#ifdef TILES

// Whether small products come out right.
inline bool tiles_are_right() {
    constexpr int64_t ROWS_TRIED = 37, INPUTS = 1088, OUTPUTS = 32;
    std::vector<Bfloat16> weight(OUTPUTS * INPUTS), numbers(ROWS_TRIED * INPUTS);
    std::vector<Bfloat16> few(ROWS_TRIED * OUTPUTS), many(ROWS_TRIED * OUTPUTS);
    for (int64_t i = 0; i < OUTPUTS * INPUTS; i++) narrow(static_cast<float>(i * 7 % 5 - 2), &weight[i]);
    for (int64_t i = 0; i < ROWS_TRIED * INPUTS; i++) narrow(static_cast<float>(i * 3 % 7 - 3), &numbers[i]);
    Linear<Bfloat16> layer = {};
    layer.weight = weight.data(), layer.inputs = INPUTS, layer.outputs = OUTPUTS;
    const Weight tried{layer};
    {
        const OpenTiles open;
        const Bfloat16* packed = pack_rows_for_tiles(ROWS_TRIED, INPUTS, numbers.data());
        multiply_packed_rows(tried, ROWS_TRIED, packed, few.data(), 0, OUTPUTS);
        const Bfloat16* laid = lay_rows(ROWS_TRIED, INPUTS, numbers.data());
        multiply_by_packed_weights(tried, ROWS_TRIED, laid, many.data(), 0, OUTPUTS);
    }
    const OpenTiles open(1);
    multiply_row(tried, numbers.data(), few.data(), 0, OUTPUTS);
    for (int64_t m = 0; m < ROWS_TRIED; m++)
        for (int64_t n = 0; n < OUTPUTS; n++) {
            float sum = 0;  // of whole numbers, exact
            for (int64_t k = 0; k < INPUTS; k++) sum += widen(numbers[m * INPUTS + k]) * widen(weight[n * INPUTS + k]);
            const float expected = rounded<Bfloat16>(sum);
            if (widen(few[m * OUTPUTS + n]) != expected || widen(many[m * OUTPUTS + n]) != expected) return false;
        }
    return true;
}

#endif
