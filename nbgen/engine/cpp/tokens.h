// Where a tensor has the numbers of a token, and which sequence a token belongs to.

#pragma once

#include <cstdint>

// A tensor `[batch, tokens, …]` in which a token's own numbers are contiguous. `strides` count the numbers from one entry of the
// batch, and from one token, to the next.
template <typename T>
struct Tokens {
    const T* numbers;
    int64_t strides[2];

    const T* at(int64_t batch, int64_t token) const { return numbers + batch * strides[0] + token * strides[1]; }
};

// `tokens` tokens of the entry `batch`, from the `first` on, continue the state number `state`, or begin it anew if it `begins`. It
// becomes the state after the first `certain` tokens. The others are guesses: what is needed to add them to the state later is kept
// from the place `held` on.
struct Sequence {
    int64_t batch, first, tokens, state, begins, certain, held;

    int64_t end() const { return first + tokens; }
    int64_t guessed() const { return first + certain; }
};
