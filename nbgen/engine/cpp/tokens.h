// Numbers of tokens, as a tensor has them, and whose tokens they are.

#pragma once

#include <cstdint>

// Of `[batch, tokens, …]`, where a token's own numbers are one after the other. From one of a batch, and from a token, to the
// next it is so many numbers.
template <typename T>
struct Tokens {
    const T* numbers;
    int64_t strides[2];

    const T* at(int64_t batch, int64_t token) const { return numbers + batch * strides[0] + token * strides[1]; }
};

// So many `tokens` of one of a batch, from the `first` on, go on from the state of this number; or it `begins` with them. That
// state becomes what the `certain` ones of them leave. Those behind are guesses: what it takes to remember them, too, is kept
// from the place `held` on.
struct Sequence {
    int64_t batch, first, tokens, state, begins, certain, held;

    int64_t end() const { return first + tokens; }
    int64_t guessed() const { return first + certain; }
};
