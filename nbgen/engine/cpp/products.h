// Products of rows with a linear layer's weight of any kind, shared out to a team.
//
// Neither the rows beside a row nor the number of threads changes a bit of its results. The number of inputs must be a multiple of
// `STEP<T>`, and that of a quantized layer's outputs one of `FEWEST`.

#pragma once

#include <optional>

#include "kind_products.h"
#include "pairs.h"
#include "team.h"
#include "tile_products.h"

// Chooses the products for a quantized layer's weights. Set once the library that has them (`rounded.cpp`) is loaded.
template <typename T>
const KindProducts<T>* (*of_rounded)(const Linear<T>& linear) = nullptr;

// The products for the layer's kind of weights.
template <typename T>
const KindProducts<T>& products_of(const Linear<T>& linear) {
    if constexpr (std::is_same_v<T, float>) {
        if (linear.bfloat16) return OF_KIND<Halves<Bfloat16>, T>;
        if (linear.float16) return OF_KIND<Halves<Float16>, T>;
    }
    return linear.integers ? *of_rounded<T>(linear) : OF_KIND<Plain<T>, T>;
}

// Whether so many rows are laid out for tiles.
template <typename T>
bool come_laid([[maybe_unused]] int64_t rows) {
#ifdef TILES
    return go_in_tiles<T>() && !few_for_tiles(rows);
#else
    return false;
#endif
}

// Whether rows are multiplied by the layer's weights as bytes. They are in the order of inputs then, and whole vectors.
template <typename T>
bool go_by_bytes([[maybe_unused]] const Linear<T>& linear) {
#ifdef BYTE_PRODUCTS
    if constexpr (std::is_same_v<T, float>) return products_of(linear).by_bytes && !linear.order && linear.inputs % VECTOR == 0;
#endif
    return false;
}

// Whether so many rows become bytes by others, in memory of as many floats.
template <typename T>
bool come_as_bytes([[maybe_unused]] const Linear<T>& linear, [[maybe_unused]] int64_t rows) {
#ifdef BYTE_PRODUCTS
    return go_by_bytes(linear) && rows > FEW_BYTES && ByteRows::size(1, linear.inputs) <= linear.inputs * int64_t{sizeof(float)};
#else
    return false;
#endif
}

// The rows that products read, as one thread keeps them while it computes these products.
template <typename T>
class Inputs {
  public:
    // Units are shared by so many `threads`. Rows that `come_laid`, or `come_as_bytes`, may be `laid` out by others.
    Inputs(int64_t rows, const T* numbers, [[maybe_unused]] const Linear<T>& first, [[maybe_unused]] int64_t threads,
           [[maybe_unused]] T* laid = nullptr)
        : rows(rows), numbers(numbers) {
#ifdef BYTE_PRODUCTS
        if (laid && come_as_bytes(first, rows)) bytes_.emplace(rows, first.inputs, laid);
#endif
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (tiles_are_used() && rows) {
                open_.emplace(rows == 1 ? 1 : SIDE);
                threads_ = threads;
                if (!few_for_tiles(rows)) packed_ = laid ? laid : lay_rows(rows, first.inputs, numbers);
                else if (rows > 1) packed_ = pack_rows_for_tiles(rows, first.inputs, numbers);
            }
#endif
        if (first.weight && come_in_strips<T>(rows, first.inputs) && !in_tiles(first) && !few(first))
            strips_ = strips_of(rows, first.inputs, numbers);
    }

    // The number of units that the layer's outputs are cut into.
    int64_t units(const Linear<T>& linear) const { return cuts(linear.outputs, pieces(linear) ? PIECES * PIECE : width(linear)); }

    // The outputs of one unit.
    Cut cut(const Linear<T>& linear, int64_t unit) const {
        return pieces(linear) ? in_pieces(linear.outputs, unit) : side_by_side(linear.outputs, unit, width(linear));
    }

    // Whether the rows are few for these weights, and the cut is one for few rows: it may be that of another layer's weights.
    bool few(const Linear<T>& linear, const Cut& cut) const {
        const bool fits = go_by_twos(linear) ? cut.pieces == 1 && cut.width % FEWEST == 0 : cut.pieces == PIECES;
        return fits && few(linear);
    }

    // Computes a cut's outputs in pairs if it is cut for that; returns whether it did.
    bool multiply_by_pairs(const Linear<T>& linear, T* output, const Cut& cut) const {
        if (cut.pieces < PIECES || !go_by_pairs(linear)) return false;
        if constexpr (std::is_same_v<T, Bfloat16>) ::multiply_by_pairs(linear, rows, strips_, output, cut);
        return true;
    }

    // Computes a cut's outputs as sums of integers if there is a way; returns whether it did.
    bool multiply_by_bytes([[maybe_unused]] const Linear<T>& linear, [[maybe_unused]] T* output,
                           [[maybe_unused]] const Cut& cut) const {
#ifdef BYTE_PRODUCTS
        if constexpr (std::is_same_v<T, float>)
            if (go_by_bytes(linear)) {
                if (!bytes_) bytes_ = byte_rows(rows, linear.inputs, numbers);
                products_of(linear).by_bytes(linear, *bytes_, output, cut);
                return true;
            }
#endif
        return false;
    }

    // Computes a cut's outputs in tiles if there are any; returns whether it did.
    bool multiply_in_tiles([[maybe_unused]] const Linear<T>& linear, [[maybe_unused]] T* output,
                           [[maybe_unused]] const Cut& cut) const {
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (in_tiles(linear)) {
                const Weight weight = weight_of(linear);
                cut.each([&](int64_t begin, int64_t end) {
                    if (rows == 1 && weight.kind) return weight.kind->by_row(linear, numbers, output, begin, end);
                    if (rows == 1) return multiply_row(weight, numbers, output, begin, end);
                    if (few_for_tiles(rows)) return multiply_packed_rows(weight, rows, packed_, output, begin, end);
                    for (; begin < end; begin += WIDE)
                        multiply_by_packed_weights(weight, rows, packed_, output, begin, std::min(end, begin + WIDE));
                });
                return true;
            }
#endif
        return false;
    }

    // Computes a cut's outputs of `gate` and `up` in tiles and joins them, by `open(gates, ups, count)` for each row, if that is
    // faster than one after the other; returns whether it did. The outputs of `up` are not kept.
    template <typename Open>
    bool multiply_gated([[maybe_unused]] const Linear<T>& gate, [[maybe_unused]] const Linear<T>& up, [[maybe_unused]] T* output,
                        [[maybe_unused]] const Cut& cut, [[maybe_unused]] const Open& open) const {
#ifdef TILES
        if constexpr (std::is_same_v<T, Bfloat16>)
            if (in_tiles(gate) && in_tiles(up) && !few_for_tiles(rows) && up.outputs) {
                cut.each([&](int64_t begin, int64_t end) {
                    for (; begin < end; begin += WIDE / 2)
                        ::multiply_gated(weight_of(gate), weight_of(up), rows, packed_, output, begin,
                                         std::min(end, begin + WIDE / 2), open);
                });
                return true;
            }
#endif
        return false;
    }

    // The rows with their inputs in the order of the layer's weights. A thread has one buffer, for one `Inputs` at a time.
    const T* ordered(const Linear<T>& linear) const {
        if (!linear.order) return numbers;
        T* made = room_of<T, Inputs>(rows * linear.inputs / STEP<T>);
        if (linear.order != std::exchange(order_, linear.order))
            for (int64_t m = 0; m < rows * linear.inputs; m += linear.inputs)
                for (int64_t k = 0; k < linear.inputs; k++) made[m + k] = numbers[m + linear.order[k]];
        return made;
    }

    int64_t rows;
    const T* numbers;

  private:
#ifdef TILES
    static Weight weight_of(const Linear<T>& linear) { return {linear, linear.weight ? nullptr : &products_of(linear)}; }
#endif

    bool pieces(const Linear<T>& linear) const {
        return go_by_bytes(linear) || (!go_by_twos(linear) && few(linear)) || go_by_pairs(linear);
    }

    bool go_by_twos(const Linear<T>& linear) const { return by_twos(rows) && rows <= products_of(linear).at_once; }

    bool few(const Linear<T>& linear) const {
        return !in_tiles(linear) && products_of(linear).are_few(linear, rows);
    }

    bool go_by_pairs(const Linear<T>& linear) const { return strips_ && suit_pairs(linear, rows); }

    // Weights with an order of their own read rows in this order, which are packed only as they are.
    bool in_tiles([[maybe_unused]] const Linear<T>& linear) const {
#ifdef TILES
        return open_.has_value() && !linear.order;
#else
        return false;
#endif
    }

    // The number of adjacent outputs that a unit has.
    int64_t width([[maybe_unused]] const Linear<T>& linear) const {
#ifdef TILES
        if (in_tiles(linear) && few_for_tiles(rows)) return !linear.weight ? WIDE : rows == 1 ? SIDE : BLOCK;
        if (in_tiles(linear)) return std::clamp(linear.outputs / (threads_ * SHARES) / BLOCK * BLOCK, BLOCK, WIDE);
#endif
        return PANEL;
    }

#ifdef TILES
    static constexpr int64_t SHARES = 4;  // units of each thread, at least: one that is held up leaves some to others

    std::optional<OpenTiles> open_;
    int64_t threads_ = 1;
    const T* packed_ = nullptr;
#endif
#ifdef BYTE_PRODUCTS
    mutable std::optional<ByteRows> bytes_;
#endif
    const T* strips_ = nullptr;
    mutable const int32_t* order_ = nullptr;
};

// Reads the weights of one output of a layer that is not quantized.
template <typename T>
void read_output(const Linear<T>& linear, int64_t output, T* to) {
    if constexpr (std::is_same_v<T, float>) {
        if (linear.bfloat16) return Halves<Bfloat16>(linear, output).write(linear.inputs, to);
        if (linear.float16) return Halves<Float16>(linear, output).write(linear.inputs, to);
    }
    std::copy_n(linear.weight + output * linear.inputs, linear.inputs, to);
}

template <typename T>
float dot(const T* a, const T* b, int64_t count) {
    Floats sum = {};
    for (int64_t k = 0; k < count; k += STEP<T>) sum = add_product(sum, loaded(a + k), loaded(b + k));
    return first_of(sums_of(sum, sum, sum, sum));
}

// Computes outputs that are left over after whole groups of `FEWEST`, one by one, for a layer that is not quantized.
template <typename T>
void multiply_rest(const Linear<T>& linear, int64_t rows, const T* input, T* output, int64_t begin, int64_t end) {
    static thread_local std::vector<T> weights;
    weights.resize(linear.inputs);
    for (int64_t n = begin; n < end; n++) {
        read_output(linear, n, weights.data());
        const float bias = linear.bias ? widen(linear.bias[n]) : 0.0f;
        for (int64_t m = 0; m < rows; m++)
            narrow(dot(input + m * linear.inputs, weights.data(), linear.inputs) + bias, output + m * linear.outputs + n);
    }
}

// Computes the outputs `begin` to `end`, a panel at most.
template <typename T>
void multiply_panel(const Linear<T>& linear, const Inputs<T>& inputs, T* output, int64_t begin, int64_t end) {
    if (const int64_t rest = (end - begin) % FEWEST) {
        multiply_rest(linear, inputs.rows, inputs.numbers, output, end - rest, end);
        end -= rest;
    }
    products_of(linear).by_panel(linear, inputs.rows, inputs.ordered(linear), output, begin, end);
}

template <typename T>
void multiply(const Linear<T>& linear, const Inputs<T>& inputs, T* output, const Cut& cut) {
    if (!inputs.rows || inputs.multiply_in_tiles(linear, output, cut) || inputs.multiply_by_bytes(linear, output, cut) ||
        inputs.multiply_by_pairs(linear, output, cut))
        return;
    if (!inputs.few(linear, cut))
        return cut.each([&](int64_t begin, int64_t end) {
            for (; begin < end; begin += PANEL) multiply_panel(linear, inputs, output, begin, std::min(end, begin + PANEL));
        });
    products_of(linear).of_few(linear, inputs.rows, inputs.ordered(linear), output, cut);
}

// Linear layers over the same rows, cut into units for a team.
template <typename T>
class Products {
  public:
    struct Part {
        const Linear<T>* linear;
        T* output;
    };

    Products(std::vector<Part> parts, int64_t rows, const T* input, int64_t threads, T* laid = nullptr)
        : parts_(parts), inputs_(rows, input, *parts[0].linear, threads, laid) {
        for (const Part& part : parts_) units += inputs_.units(*part.linear);
    }

    void operator()(int64_t unit) const {
        for (const Part& part : parts_) {
            const int64_t own = inputs_.units(*part.linear);
            if (unit < own) return multiply(*part.linear, inputs_, part.output, inputs_.cut(*part.linear, unit));
            unit -= own;
        }
    }

    int64_t units = 0;

  private:
    std::vector<Part> parts_;
    Inputs<T> inputs_;
};

// Adds to a row's `output` the result of the row's adapter, which has the columns `begin` to `end`.
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
