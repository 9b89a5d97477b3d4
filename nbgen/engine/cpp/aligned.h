// Buffers that begin on a cache line, and grow.

#pragma once

#include <cstdint>
#include <new>
#include <vector>

// Memory that begins on a cache line: tiles take twice as long to load from two.
template <typename V>
struct LineAllocator {
    using value_type = V;
    LineAllocator() = default;
    template <typename U>
    LineAllocator(const LineAllocator<U>&) {}
    V* allocate(std::size_t count) { return static_cast<V*>(::operator new(count * sizeof(V), std::align_val_t(64))); }
    void deallocate(V* memory, std::size_t) { ::operator delete(memory, std::align_val_t(64)); }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};

template <typename V>
using Aligned = std::vector<V, LineAllocator<V>>;

template <typename V, typename A>
auto* at_least(std::vector<V, A>& vector, int64_t size) {
    if (static_cast<int64_t>(vector.size()) < size) vector.resize(size);
    return vector.data();
}
