// The library that `native.py` builds and other modules call, for one type of number: `BFLOAT16` says which. It has products and
// layers only for processors with AVX2 or for ARM, and in bfloat16 only for processors that multiply it.

#include "attention.h"
#include "delta.h"
#include "draws.h"
#include "exported.h"
#include "scan.h"

#if (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)) || defined(__aarch64__)
#include "layers.h"
#endif

EXPORTED void attend(const Batch* batch, const AttentionLayer* layer, const Number* query, void* keys, void* values,
                     Number* output, float* scratch) {
    with_kept<Number>(*layer, keys, values, [&](auto* keys, auto* values) {
        using Kept = std::remove_pointer_t<decltype(keys)>;
        const Attention<Number, Kept> attention{*batch, *layer, query, keys, values, output, scratch};
        Team(std::min(batch->threads, batch->tasks * layer->kv_heads), 2).run([&](Team::Member& member) {
            attention.run(member);
        });
    });
}

// Draws `count` tokens, each from a row of `scores` `[…, vocab]`, in the order of `draws`.
EXPORTED void draw(const Draw* draws, int64_t count, int64_t threads, const float* scores, int64_t vocab, int64_t* tokens) {
    Team(std::min(threads, count), 1).run([&](Team::Member& member) {
        static thread_local std::vector<float> weights;
        weights.resize(vocab);
        member.each(count, [&](int64_t i) {
            tokens[i] = drawn(draws[i], scores + draws[i].row * vocab, vocab, weights.data());
        });
    });
}

EXPORTED void remember(const Delta<Number>* rule) {
    const DeltaRule<Number> delta(*rule);
    Team(rule->threads, 1).run([&](Team::Member& member) { delta.run(member); });
}

EXPORTED void scan(const Scan<Number>* scan) {
    const StateScan<Number> states(*scan);
    Team(scan->threads, 1).run([&](Team::Member& member) { states.run(member); });
}

#if defined(LAYERS) && (!defined(BFLOAT16) || defined(__AVX512BF16__))

// From now on, this process multiplies bfloat16 in tiles if they work; returns whether they do. Where the processor has tiles, but
// the system or a layer in between refuses them, the process may end here.
EXPORTED int64_t use_tiles() {
#ifdef TILES
    return tiles_are_used() = ask_for_tiles() && tiles_are_right();
#else
    return 0;
#endif
}

// From now on, `products`, of another library, chooses the products of quantized layers.
EXPORTED void use_rounded(const KindProducts<Number>* (*products)(const Linear<Number>&)) { of_rounded<Number> = products; }

// A layer's number of inputs must be a multiple of this.
EXPORTED int64_t step() { return STEP<Number>; }

EXPORTED void multiply(const Linear<Number>* linear, int64_t rows, int64_t threads, const Number* input, Number* output) {
    Team(threads, 1).run([&](Team::Member& member) {
        const Products<Number> products({{linear, output}}, rows, input, threads);
        member.each(products.units, products);
    });
}

// Computes a mixture of experts of `input` `[rows, width]`.
EXPORTED void mix(const Experts<Number>* experts, const Routes<Number>* routes, const Number* input, Number* output) {
    Team(routes->threads, Mixture<Number>::PHASES).run([&](Team::Member& member) {
        Mixture<Number>(member, *experts, *routes).run(input, output);
    });
}

// Runs a step through all layers. `hidden` `[rows, width]` becomes the last layer's output, if the step has no `last`.
EXPORTED void run_layers(const Step<Number>* step, const DecoderLayer<Number>* layers, int64_t count, Number* hidden) {
    Team(step->threads, Walk<Number>::phases(*step, layers, count)).run([&](Team::Member& member) {
        Walk<Number>(member, *step, hidden).through(layers, count);
    });
}

// Advances the states of `some` sequences, in all recurrent ones of `count` layers, past tokens that are held, of `rows` in all.
EXPORTED void remember_held(const DecoderLayer<Number>* layers, int64_t count, const Sequence* sequences, int64_t some,
                            int64_t rows, int64_t threads, float* scratch, Number* output) {
    Team(threads, count * Remembered<Number>::PHASES).run([&](Team::Member& member) {
        for (const DecoderLayer<Number>* layer = layers; layer < layers + count; layer++) {
            if (!layer->recurrence) continue;
            const Recurrence<Number>& own = *layer->recurrence;
            Remembered<Number>{own,   sequences, some, rows, own.held, nullptr, own.held_steps, own.held_shares, scratch,
                               output, true}
                .run(member);
        }
    });
}

// Turns `count` outputs of the head into the model's scores `to`. Float scores that nothing would change are not copied.
EXPORTED void finish(const Scales* scales, int64_t count, int64_t threads, const Number* scores, float* to) {
    constexpr int64_t PART = 4096;
    Team(threads, 1).run([&](Team::Member& member) {
        member.each((count + PART - 1) / PART, [&](int64_t unit) {
            finish_scores(*scales, scores, unit * PART, std::min(count, (unit + 1) * PART), to);
        });
    });
}

#ifdef TIMED
// The seconds of each `StepPart` since the last call.
EXPORTED void take_part_seconds(double* seconds) {
    for (double& part : part_seconds) *seconds++ = std::exchange(part, 0.0);
}
#endif

#endif
