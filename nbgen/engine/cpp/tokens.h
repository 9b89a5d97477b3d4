// Numbers of tokens, as a tensor has them.

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
