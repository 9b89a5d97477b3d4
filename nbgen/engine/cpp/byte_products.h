// Products of rows with integers of 8 bits, as sums of integers: exact until they are put together.
//
// A sum of integers is the same in any order, so that a result depends neither on other rows nor on the cut. A few rows read
// weights where they lie. For more, the weights of 16 outputs are flipped (`byte_rows.h`) into a buffer near the processor while
// the 16 before them are multiplied: so memory is kept busy, too.

#pragma once

#include "byte_rows.h"
#include "cut.h"
#include "panel.h"

#ifdef BYTE_PRODUCTS

constexpr int ABREAST = REGISTERS == 32 ? 2 : 1;  // rows at a time: their sums by four outputs, and these, fill the registers
constexpr int64_t FEW_BYTES = 8;                  // rows, up to which it pays to read weights where they lie
constexpr int64_t BYTES_AHEAD = 1024;             // from weights to those that are prefetched

// Weights of four outputs, `across` from each other: as in their layer if they `LIE`, else flipped, vector after vector.
template <bool LIE>
struct FourOutputs {
    const int8_t* first;
    int64_t across;

    const int8_t* at(int64_t k, int a) const { return first + (LIE ? k : k * PIECES) + a * across; }

    Words read(int64_t k, int a) const { return LIE ? words_at(at(k, a)) ^ FLIP : words_at(at(k, a)); }
};

// Multiplies the `R` rows from `m` on by four outputs. `keep(i, a, sum)` takes the lanes of each sum.
template <int R, bool LIE, typename Keep>
[[gnu::always_inline]] inline void multiply_bytes(const ByteRows& rows, int64_t m, int64_t inputs, FourOutputs<LIE> four,
                                                  const Keep& keep) {
    Integers32 sums[R][PLACES][PIECES];
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int place = 0; place < PLACES; place++)
#pragma GCC unroll 8
            for (int a = 0; a < PIECES; a++) sums[i][place][a] = rows.starts(m + i, place);
    for (int64_t k = 0; k < inputs; k += VECTOR) {
        Words weights[PIECES];
#pragma GCC unroll 8
        for (int a = 0; a < PIECES; a++) {
            if (LIE) fetch_line(four.at(k, a) + BYTES_AHEAD);
            weights[a] = four.read(k, a);
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int place = 0; place < PLACES; place++) {
                const Words row = words_at(rows.bytes(m + i, place) + k);
#pragma GCC unroll 8
                for (int a = 0; a < PIECES; a++) sums[i][place][a] = add_bytes(sums[i][place][a], weights[a], row);
            }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int a = 0; a < PIECES; a++) {
            Floats sum = {};
#pragma GCC unroll 8
            for (int place = PLACES - 1; place >= 0; place--)
                sum = sum * 256.0f + __builtin_convertvector(sums[i][place][a], Floats);
            keep(i, a, sum * rows.step(m + i));
        }
}

// Flips the weights of four outputs of each piece, part by part.
class Flipping {
  public:
    // Writes those from `n` on to `flipped` `[FEWEST, inputs / VECTOR, PIECES, VECTOR]`, or prefetches them if this is null.
    Flipping(const Linear<float>& linear, int64_t n, int64_t apart, int8_t* flipped, int64_t parts)
        : first_(linear.integers + n * linear.inputs),
          inputs_(linear.inputs), across_(apart * linear.inputs), flipped_(flipped), parts_(parts) {}

    void go_on() {
        const int64_t all = FEWEST * inputs_ / VECTOR, to = ++done_ * all / parts_;
        for (; at_ < to; at_++)
            for (int a = 0; a < PIECES; a++) {
                const int8_t* own = first_ + at_ * VECTOR + a * across_;
                fetch_line(own + (flipped_ ? BYTES_AHEAD : 0));
                if (flipped_) put(words_at(own) ^ FLIP, flipped_ + (at_ * PIECES + a) * VECTOR);
            }
    }

  private:
    const int8_t* first_;
    int64_t inputs_, across_;
    int8_t* flipped_;
    int64_t parts_, done_ = 0, at_ = 0;
};

// Multiplies a few rows by `count` outputs of each piece, whose weights are read where they lie.
inline void multiply_few_bytes(const Linear<float>& linear, const ByteRows& rows, float* output, int64_t n, int64_t count,
                               int64_t apart) {
    Floats sums[FEW_BYTES / ABREAST][PIECES][ABREAST][FEWEST], last[PIECES][1][FEWEST];
    const int64_t inputs = linear.inputs, strips = rows.rows / ABREAST, rest = strips * ABREAST;
    for (const int64_t end = n + count; n < end; n += FEWEST) {
        for (int j = 0; j < FEWEST; j++) {
            const FourOutputs<true> four{linear.integers + (n + j) * inputs, apart * inputs};
            for (int64_t strip = 0; strip < strips; strip++)
                multiply_bytes<ABREAST>(rows, strip * ABREAST, inputs, four,
                                        [&](int i, int a, Floats sum) { sums[strip][a][i][j] = sum; });
            if (rest < rows.rows) multiply_bytes<1>(rows, rest, inputs, four, [&](int, int a, Floats sum) { last[a][0][j] = sum; });
        }
        for (int a = 0; a < PIECES; a++) {
            for (int64_t strip = 0; strip < strips; strip++)
                finish(linear, sums[strip][a], output + strip * ABREAST * linear.outputs, n + a * apart);
            if (rest < rows.rows) finish(linear, last[a], output + rest * linear.outputs, n + a * apart);
        }
    }
}

// Multiplies the rows `first` to `last` by as many outputs.
inline void multiply_some_bytes(const Linear<float>& linear, const ByteRows& rows, int64_t first, int64_t last, float* output,
                                int64_t n, int64_t count, int64_t apart) {
    const int64_t inputs = linear.inputs, size = PIECES * FEWEST * inputs, strips = cuts(last - first, ABREAST);
    int8_t *flipped = room_of<int8_t, ByteRows>(2 * size / VECTOR), *next = flipped + size;
    Flipping(linear, n, apart, flipped, 1).go_on();
    for (const int64_t end = n + count; n < end; n += FEWEST, std::swap(flipped, next)) {
        Flipping coming(linear, n + FEWEST, apart, n + FEWEST < end ? next : nullptr, strips * FEWEST);
        const auto multiply = [&](auto abreast, int64_t m) {
            constexpr int R = decltype(abreast)::value;
            Floats sums[PIECES][R][FEWEST];
            for (int j = 0; j < FEWEST; j++) {
                coming.go_on();
                multiply_bytes<R>(rows, m, inputs, FourOutputs<false>{flipped + j * PIECES * inputs, VECTOR},
                                  [&](int i, int a, Floats sum) { sums[a][i][j] = sum; });
            }
            for (int a = 0; a < PIECES; a++) finish(linear, sums[a], output + m * linear.outputs, n + a * apart);
        };
        int64_t m = first;
        for (; m + ABREAST <= last; m += ABREAST) multiply(std::integral_constant<int, ABREAST>(), m);
        if (m < last) multiply(std::integral_constant<int, 1>(), m);
    }
}

// Multiplies many rows by as many outputs. Some at a time stay in the second-level cache.
inline void multiply_many_bytes(const Linear<float>& linear, const ByteRows& rows, float* output, int64_t n, int64_t count,
                                int64_t apart) {
    const int64_t some = std::max<int64_t>(FEW_BYTES, STAYING / 2 / PLACES / linear.inputs);
    for (int64_t m = 0; m < rows.rows; m += some)
        multiply_some_bytes(linear, rows, m, std::min(rows.rows, m + some), output, n, count, apart);
}

// Multiplies all rows by four outputs.
inline void multiply_bytes_of_four(const Linear<float>& linear, const ByteRows& rows, float* output, int64_t n) {
    const FourOutputs<true> four{linear.integers + n * linear.inputs, linear.inputs};
    for (int64_t m = 0; m < rows.rows; m++) {
        Floats sums[1][FEWEST];
        multiply_bytes<1>(rows, m, linear.inputs, four, [&](int, int a, Floats sum) { sums[0][a] = sum; });
        finish(linear, sums, output + m * linear.outputs, n);
    }
}

// Multiplies rows by the outputs of a cut: those of pieces that lie side by side are taken as pieces of their own.
inline void multiply_by_bytes(const Linear<float>& linear, const ByteRows& rows, float* output, const Cut& cut) {
    const auto multiply = rows.rows > FEW_BYTES ? multiply_many_bytes : multiply_few_bytes;
    if (cut.pieces == PIECES) return multiply(linear, rows, output, cut.begin, cut.width, cut.apart);
    const int64_t piece = cut.width / PIECES / FEWEST * FEWEST;
    if (piece) multiply(linear, rows, output, cut.begin, piece, piece);
    for (int64_t n = cut.begin + PIECES * piece; n < cut.begin + cut.width; n += FEWEST)
        multiply_bytes_of_four(linear, rows, output, n);
}

#endif
