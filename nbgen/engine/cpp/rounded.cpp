// The library that `native.py` builds besides `native.cpp` once a layer is quantized, for one type of number. It is more than half
// of the code to compile, and most models have no such layer.

#include "exported.h"
#include "kind_products.h"

// The products for the layer's kind of weights.
EXPORTED const KindProducts<Number>* products(const Linear<Number>& linear) {
    if (linear.steps) return &OF_KIND<Nibbles<Number, Steps>, Number>;
    if (linear.exponents) return &OF_KIND<Nibbles<Number, Powers>, Number>;
    if (linear.numbers) return &OF_KIND<Nibbles<Number, Scaled>, Number>;
    if (linear.floats) return &OF_KIND<Multiples<Number, Float8>, Number>;
    if (linear.factors) return &OF_KIND<Multiples<Number>, Number>;
    return &OF_KIND<Integers<Number>, Number>;
}
