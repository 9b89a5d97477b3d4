// Products of rows with the weight `[outputs, inputs]` of a linear layer, as it lies in memory.
//
// A result is the same sum in the same order whatever tile it is computed in: neither the rows beside it nor the number
// of threads changes a bit. A tile's sums stay in registers; the weight is read once for all rows of a step, and what
// comes next of it is fetched meanwhile. Where a row's number of inputs is no multiple of `STEP<T>`, or the outputs are no
// multiple of `FEWEST`, there is no product.

#pragma once

#include <optional>
#include <type_traits>

#include "nibbles.h"
#include "team.h"
#include "tiles.h"

constexpr int FEWEST = 4;           // outputs of a tile of many rows
constexpr int MOST = 8;             // and of one or two
constexpr int64_t DISTANCE = 8192;  // bytes ahead of one or two rows' products that their weights are fetched
constexpr int64_t PANEL = 32;       // outputs whose weights stay in the second-level cache while all rows go by

template <typename T>
constexpr int64_t STEP = VECTOR / sizeof(T);

inline Floats add_product(Floats sum, const float* a, const float* b) {
    return sum + *reinterpret_cast<const Floats*>(a) * *reinterpret_cast<const Floats*>(b);
}

inline Floats add_product(Floats sum, const Bfloat16* a, const Bfloat16* b) {
#ifdef __AVX512BF16__
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(b))));
#else
    Words x = *reinterpret_cast<const Words*>(a), y = *reinterpret_cast<const Words*>(b);
    sum += reinterpret_cast<Floats>(x << 16) * reinterpret_cast<Floats>(y << 16);
    return sum + reinterpret_cast<Floats>(x & 0xffff0000u) * reinterpret_cast<Floats>(y & 0xffff0000u);
#endif
}

// Integers of 8 bits are exact in either type.
inline Floats add_product(Floats sum, const float* a, const int8_t* b) {
#ifdef __AVX512F__
    const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b))));
#else
    const __m256 wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(b)));
#endif
    return sum + *reinterpret_cast<const Floats*>(a) * reinterpret_cast<Floats>(wide);
}

#ifdef __AVX512BF16__
inline Floats add_product(Floats sum, const Bfloat16* a, const int8_t* b) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(all)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(all, 1)));
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                     reinterpret_cast<__m512bh>(_mm512_loadu_si512(a)),
                                                     _mm512_cvtne2ps_pbh(high, low)));
}
#endif

// Lanes i and i + n/2 added until there are four: what every sum over lanes begins with.
inline __m128 quarter(Floats v) {
#ifdef __AVX512F__
    __m512d wide = reinterpret_cast<__m512d>(v);
    __m256 half = _mm256_add_ps(_mm256_castpd_ps(_mm512_castpd512_pd256(wide)),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(wide, 1)));
#else
    __m256 half = reinterpret_cast<__m256>(v);
#endif
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// (0 + 2) + (1 + 3) of each of four.
inline __m128 sums_of(__m128 a, __m128 b, __m128 c, __m128 d) {
    __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

inline __m128 widen_four(const float* from) { return _mm_loadu_ps(from); }

inline __m128 widen_four(const Bfloat16* from) {
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadu_si64(from)), 16));
}

inline void narrow_four(__m128 four, float* to) { _mm_storeu_ps(to, four); }

// As `narrow` does.
inline void narrow_four(__m128 four, Bfloat16* to) {
    const __m128i bits = _mm_castps_si128(four), last = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), last);
    _mm_storeu_si64(to, _mm_packus_epi32(_mm_srli_epi32(rounded, 16), _mm_setzero_si128()));
}

// A linear layer; no bias is null. Its weights are `weight`, or `integers` times the `scales` of each output, or, where
// there are `steps` `[outputs, groups, 2]`, four bits each: so many of its group's steps from its middle. What adapters
// add (LoRA, Hu et al. 2021) goes through `down` `[columns, inputs]` and `up` `[columns, outputs]`, null where none does.
template <typename T>
struct Linear {
    const T* weight;
    const T* bias;
    const T* down;
    const T* up;
    const int8_t* integers;
    const float* scales;
    const T* steps;
    int64_t inputs, outputs;
};

// A tile's sums over lanes, as outputs.
template <int R, int N, typename T>
inline void finish(const Linear<T>& linear, const Floats (&sums)[R][N], T* output, int64_t n) {
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 8
        for (int j = 0; j < N; j += 4) {
            __m128 four = sums_of(quarter(sums[i][j]), quarter(sums[i][j + 1]), quarter(sums[i][j + 2]),
                                  quarter(sums[i][j + 3]));
            if (linear.scales) four = _mm_mul_ps(four, _mm_loadu_ps(linear.scales + n + j));
            if (linear.bias) four = _mm_add_ps(four, widen_four(linear.bias + n + j));
            narrow_four(four, output + i * linear.outputs + n + j);
        }
}

// `R` rows of `input` by `N` outputs from `n` on of `weights`, one output after the other: where this is all that is done
// with the weights they come from memory in the order in which they lie there, which is how processors fetch ahead best.
template <int R, int N, typename T>
inline void read_once(const Linear<T>& linear, const T* weights, const T* input, T* output, int64_t n) {
    const T* weight = weights + n * linear.inputs;
    Floats sums[R][N];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++, weight += linear.inputs) {
        Floats own[R] = {};
        for (int64_t k = 0; k < linear.inputs; k += STEP<T>) {
            _mm_prefetch(reinterpret_cast<const char*>(weight + k) + DISTANCE, _MM_HINT_T0);
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) own[i] = add_product(own[i], input + i * linear.inputs + k, weight + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) sums[i][j] = own[i];
    }
    finish(linear, sums, output, n);
}

// `R` rows of `input` by `N` outputs from `n` on of `weights`. Meanwhile those of the outputs `ahead` are fetched, of the
// inputs `from` to `to`.
template <int R, int N, typename T, typename W>
inline void tile(const Linear<T>& linear, const W* weights, const T* input, T* output, int64_t n, int64_t ahead,
                 int64_t from, int64_t to) {
    const W* weight = weights + n * linear.inputs;
    const W* next = weight + ahead * linear.inputs;
    Floats sums[R][N] = {};
    for (int64_t k = 0; k < linear.inputs; k += STEP<T>) {
        if (k >= from && k < to)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                _mm_prefetch(reinterpret_cast<const char*>(next + j * linear.inputs + k), _MM_HINT_T1);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                sums[i][j] = add_product(sums[i][j], input + i * linear.inputs + k, weight + j * linear.inputs + k);
    }
    finish(linear, sums, output, n);
}

template <int R, int N, typename T>
inline void tile(const Linear<T>& linear, const Nibbles* weights, const T* input, T* output, int64_t n, int64_t ahead,
                 int64_t from, int64_t to) {
    const int64_t bytes = linear.inputs / 2, groups = linear.inputs / GROUP;
    const Nibbles* weight = weights + n * bytes;
    const T* steps = linear.steps + 2 * n * groups;
    Floats sums[R][N] = {};
    for (int64_t g = 0; g < groups; g++) {
        if (g * GROUP >= from && g * GROUP < to)
#pragma GCC unroll 8
            for (int j = 0; j < N; j++)
                _mm_prefetch(reinterpret_cast<const char*>(weight + (ahead + j) * bytes + g * GROUP / 2), _MM_HINT_T1);
        Floats totals[R];
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) totals[i] = GroupOf<T>::total(input + i * linear.inputs + g * GROUP);
#pragma GCC unroll 8
        for (int j = 0; j < N; j++) {
            const GroupOf<T> group(weight + j * bytes + g * GROUP / 2);
            const StepAndMiddle of(steps + 2 * (j * groups + g));
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                const Floats product = group.times(input + i * linear.inputs + g * GROUP);
                sums[i][j] = sums[i][j] + product * of.step + totals[i] * of.middle;
            }
        }
    }
    finish(linear, sums, output, n);
}

// `R` rows from `m` on of all `rows`, by the outputs `begin` to `end`: each row fetches its part of the next panel.
template <int R, int N, typename T, typename W>
inline void strip(const Linear<T>& linear, const W* weights, int64_t rows, int64_t m, const T* input, T* output,
                  int64_t begin, int64_t end) {
    const int64_t from = m * linear.inputs / rows, to = (m + R) * linear.inputs / rows;
    const int64_t ahead = rows == 1 ? N : PANEL;
    input += m * linear.inputs;
    output += m * linear.outputs;
    int64_t n = begin;
    for (; n + N <= end; n += N) tile<R, N>(linear, weights, input, output, n, ahead, from, to);
    for (; n < end; n += FEWEST) tile<R, FEWEST>(linear, weights, input, output, n, ahead, from, to);
}

// `input` `[rows, inputs]` to the outputs `begin` to `end`, a panel at most, of `output` `[rows, outputs]`.
template <typename T, typename W>
void multiply_by(const W* weights, const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin,
                 int64_t end) {
    if constexpr (std::is_same_v<W, T>)
        if (rows == 1 || rows == 2) {
            for (int64_t n = begin; n < end; n += FEWEST)
                rows == 1 ? read_once<1, FEWEST>(linear, weights, input, output, n)
                          : read_once<2, FEWEST>(linear, weights, input, output, n);
            return;
        }
    int64_t m = 0;
    const int64_t even = ROWS == 6 && rows % ROWS == 2 && rows > 2 ? 8 : 0;  // two of four rather than six and two
    for (; m + ROWS <= rows - even; m += ROWS) strip<ROWS, FEWEST>(linear, weights, rows, m, input, output, begin, end);
    for (; m + 4 <= rows; m += 4) strip<4, FEWEST>(linear, weights, rows, m, input, output, begin, end);
    for (; m + 2 <= rows; m += 2) strip<2, MOST>(linear, weights, rows, m, input, output, begin, end);
    for (; m < rows; m++) strip<1, MOST>(linear, weights, rows, m, input, output, begin, end);
}

// The weights of the outputs `begin` to `end` as numbers, where many rows read them.
template <typename T>
const T* widened(const Linear<T>& linear, int64_t begin, int64_t end) {
    thread_local std::vector<T> numbers;
    numbers.resize(PANEL * linear.inputs);
    const int64_t count = (end - begin) * linear.inputs;
    T* to = numbers.data();
    if (!linear.steps) {
        const int8_t* integers = linear.integers + begin * linear.inputs;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) narrow(integers[i], to + i);
        return to;
    }
    const uint8_t* bytes = reinterpret_cast<const uint8_t*>(linear.integers) + begin * linear.inputs / 2;
    const T* steps = linear.steps + 2 * begin * linear.inputs / GROUP;
    for (int64_t group = 0; group < count / GROUP; group++, bytes += GROUP / 2, to += GROUP) {
        const float step = widen(steps[2 * group]), middle = widen(steps[2 * group + 1]);
#pragma omp simd
        for (int64_t i = 0; i < GROUP / 2; i++) {
            narrow(((bytes[i] & 15) - 8) * step + middle, to + i);
            narrow(((bytes[i] >> 4) - 8) * step + middle, to + GROUP / 2 + i);
        }
    }
    return numbers.data();
}

// Rows that products read, for as long as one thread computes these.
template <typename T>
class Inputs {
  public:
    Inputs(int64_t rows, const T* numbers, [[maybe_unused]] const Linear<T>& first) : rows(rows), numbers(numbers) {
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (tiles_are_used() && first.weight && rows) {
                open_.emplace();
                packed_ = pack_rows_for_tiles(rows, first.inputs, numbers);
            }
#endif
    }

    // Whether the outputs `begin` to `end` were made in tiles.
    bool multiply_in_tiles([[maybe_unused]] const Linear<T>& linear, [[maybe_unused]] T* output,
                           [[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) const {
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (packed_ && linear.weight && linear.outputs % SIDE == 0) {
                ::multiply_in_tiles({linear.weight, linear.bias, linear.inputs, linear.outputs}, rows, packed_, output, begin,
                                    end);
                return true;
            }
#endif
        return false;
    }

    int64_t rows;
    const T* numbers;

  private:
#ifdef TILES
    std::optional<OpenTiles> open_;
    const T* packed_ = nullptr;
#endif
};

template <typename T>
void multiply(const Linear<T>& linear, const Inputs<T>& inputs, T* output, int64_t begin, int64_t end) {
    if (inputs.multiply_in_tiles(linear, output, begin, end)) return;
    const int64_t rows = inputs.rows;
    const T* input = inputs.numbers;
    if (linear.integers && rows > 8 * ROWS)
        multiply_by(widened(linear, begin, end) - begin * linear.inputs, linear, rows, input, output, begin, end);
    else if (linear.steps)
        multiply_by(reinterpret_cast<const Nibbles*>(linear.integers), linear, rows, input, output, begin, end);
    else if (linear.integers)
        multiply_by(linear.integers, linear, rows, input, output, begin, end);
    else
        multiply_by(linear.weight, linear, rows, input, output, begin, end);
}

// Linear layers over the same rows, cut into units for a team.
template <typename T>
class Products {
  public:
    struct Part {
        const Linear<T>* linear;
        T* output;
    };

    Products(std::vector<Part> parts, int64_t rows, const T* input)
        : parts_(parts), inputs_(rows, input, *parts[0].linear) {
        for (const Part& part : parts_) units += panels(*part.linear);
    }

    void operator()(int64_t unit) const {
        for (const Part& part : parts_) {
            const int64_t own = panels(*part.linear);
            if (unit < own) {
                const int64_t end = std::min(part.linear->outputs, (unit + 1) * PANEL);
                multiply(*part.linear, inputs_, part.output, unit * PANEL, end);
                return;
            }
            unit -= own;
        }
    }

    int64_t units = 0;

  private:
    static int64_t panels(const Linear<T>& linear) { return (linear.outputs + PANEL - 1) / PANEL; }

    std::vector<Part> parts_;
    Inputs<T> inputs_;
};

template <typename T>
float dot(const T* a, const T* b, int64_t count) {
    Floats sum = {};
    for (int64_t k = 0; k < count; k += STEP<T>) sum = add_product(sum, a + k, b + k);
    const __m128 four = quarter(sum);
    return _mm_cvtss_f32(sums_of(four, four, four, four));
}

// What a row's adapter, of the columns `begin` to `end`, adds to the row's `output`.
template <typename T>
void adapt(const Linear<T>& linear, const T* input, int64_t begin, int64_t end, T* output) {
    std::vector<float> sums(linear.outputs);
    for (int64_t c = begin; c < end; c++) {
        const float share = rounded<T>(dot(input, linear.down + c * linear.inputs, linear.inputs));
        const T* up = linear.up + c * linear.outputs;
        for (int64_t n = 0; n < linear.outputs; n++) sums[n] += share * widen(up[n]);
    }
    for (int64_t n = 0; n < linear.outputs; n++) narrow(widen(output[n]) + sums[n], output + n);
}
