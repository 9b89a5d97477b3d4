// What `native.py` builds and others call, once for each type of number. Products and layers are there for processors with
// AVX2 and later ones.

#include "attention.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "layers.h"
#endif

template <typename T>
void attend_alone(const Batch& batch, const AttentionLayer& layer, const T* query, const T* keys, const T* values,
                  T* output, float* scratch) {
    const Attention<T> attention{batch, layer, query, keys, values, output, scratch};
    Team(std::min(batch.threads, batch.tasks * layer.kv_heads), 2).run([&](Team::Member& member) { attention.run(member); });
}

#define ATTEND(NAME, T)                                                                                           \
    extern "C" void attend_##NAME(const Batch* batch, const AttentionLayer* layer, const T* query, const T* keys, \
                                  const T* values, T* output, float* scratch) {                                   \
        attend_alone(*batch, *layer, query, keys, values, output, scratch);                                       \
    }

ATTEND(float32, float)
ATTEND(bfloat16, Bfloat16)

#ifdef LAYERS

// Whether this process multiplies bfloat16 in tiles from now on. Where the processor has them and the system or what is
// between refuses, the process may end here.
extern "C" int64_t use_tiles() {
#ifdef TILES
    return tiles_are_used() = ask_for_tiles() && tiles_are_right();
#else
    return 0;
#endif
}

template <typename T>
void multiply_alone(const Linear<T>& linear, int64_t rows, int64_t threads, const T* input, T* output) {
    Team(threads, 1).run([&](Team::Member& member) {
        const Products<T> products({{&linear, output}}, rows, input);
        member.each(products.units, products);
    });
}

// `hidden` `[rows, width]` becomes what the last layer leaves, of a step that has no `last`.
template <typename T>
void run_layers(const Step<T>& step, const DecoderLayer<T>* layers, int64_t count, T* hidden) {
    Team(step.threads, count * Walk<T>::PHASES + Walk<T>::ENDS).run([&](Team::Member& member) {
        Walk<T>(member, step, hidden).through(layers, count);
    });
}

#define LAYERS_OF(NAME, T)                                                                                            \
    extern "C" int64_t step_##NAME() { return STEP<T>; }                                                              \
    extern "C" void multiply_##NAME(const Linear<T>* linear, int64_t rows, int64_t threads, const T* input,           \
                                    T* output) {                                                                      \
        multiply_alone(*linear, rows, threads, input, output);                                                        \
    }                                                                                                                 \
    extern "C" void run_layers_##NAME(const Step<T>* step, const DecoderLayer<T>* layers, int64_t count, T* hidden) { \
        run_layers(*step, layers, count, hidden);                                                                     \
    }

LAYERS_OF(float32, float)
#ifdef __AVX512BF16__
LAYERS_OF(bfloat16, Bfloat16)
#endif

#endif
