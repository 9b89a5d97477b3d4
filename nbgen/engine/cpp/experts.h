// Mixtures of experts (Shazeer et al. 2017): a row goes through a few of many gated feed-forwards, and their results are added up,
// weighed by the row's shares. Neither the other rows nor the number of threads changes a bit of the sum.

#pragma once

#include "activations.h"
#include "part_timer.h"
#include "products.h"

// `count` experts of one shape, each with its own of the `gates`, `ups` and `downs`; `ups` may be null.
template <typename T>
struct Experts {
    const Linear<T>*gates, *ups, *downs;
    int64_t count;
    Activation activation;
};

// The `chosen` `[rows, each]` experts of each row (`count` or more stands for none), and the `shares` that weigh their results.
// The rest are buffers. Rows are gathered expert by expert: `places` is where each choice's row is among them, `ends` where each
// expert's rows end, and `used` the number of experts that have rows, followed by these experts.
template <typename T>
struct Routes {
    int64_t rows, each, threads;
    int64_t* chosen;
    float* shares;
    int64_t *places, *ends, *used;
    T *gathered, *gates, *ups, *made;
};

// One team member's (thread's) pass through the experts of some rows.
template <typename T>
class Mixture {
  public:
    static constexpr int64_t PHASES = 5;

    Mixture(Team::Member& member, const Experts<T>& experts, const Routes<T>& routes)
        : member_(member), experts_(experts), routes_(routes) {}

    // `input` and `output` `[rows, width]` may be the same.
    void run(const T* input, T* output) {
        const int64_t width = experts_.gates->inputs, within = experts_.gates->outputs;
        member_.each(1, [&](int64_t) { sort(); });
        member_.each(routes_.rows * routes_.each, [&](int64_t choice) {
            const int64_t place = routes_.places[choice];
            if (place >= 0) std::copy_n(input + choice / routes_.each * width, width, routes_.gathered + place * width);
        });
        each_panel(experts_.gates, routes_.gathered, [&](const Panel& panel, const Inputs<T>& inputs) {
            T *gates = routes_.gates + panel.first * within, *ups = routes_.ups + panel.first * within;
            multiply(experts_.gates[panel.expert], inputs, gates, panel.cut);
            if (experts_.ups) multiply(experts_.ups[panel.expert], inputs, ups, panel.cut);
            for (int64_t at = 0; at < inputs.rows * within; at += within)
                panel.cut.each([&](int64_t begin, int64_t end) {
                    gate(experts_.activation, gates + at, experts_.ups ? ups + at : nullptr, begin, end);
                });
        });
        each_panel(experts_.downs, routes_.gates, [&](const Panel& panel, const Inputs<T>& inputs) {
            multiply(experts_.downs[panel.expert], inputs, routes_.made + panel.first * width, panel.cut);
        });
        member_.each(routes_.rows, [&](int64_t row) { add_up(row, width, output + row * width); });
    }

  private:
    // The outputs of a `cut` of one expert, whose rows begin at `first` among the gathered ones.
    struct Panel {
        int64_t expert, first;
        Cut cut;
    };

    // Orders choices by expert, and those of one expert by row.
    void sort() {
        const int64_t choices = routes_.rows * routes_.each;
        const auto is_one = [&](int64_t choice) { return routes_.chosen[choice] < experts_.count; };
        int64_t* ends = routes_.ends;
        std::fill_n(ends, experts_.count, 0);
        for (int64_t choice = 0; choice < choices; choice++)
            if (is_one(choice)) ends[routes_.chosen[choice]]++;
        int64_t number = 0, place = 0;
        for (int64_t expert = 0; expert < experts_.count; expert++) {
            if (ends[expert]) routes_.used[++number] = expert;
            place += std::exchange(ends[expert], place);
        }
        routes_.used[0] = number;
        for (int64_t choice = 0; choice < choices; choice++)
            routes_.places[choice] = is_one(choice) ? ends[routes_.chosen[choice]]++ : -1;
    }

    // Calls `work(panel, inputs)` for all panels of the experts that have rows in `input`. The number of units does not depend on
    // how rows are sorted: a member who comes late gets the same one when others have already sorted the next layer's rows.
    template <typename Work>
    void each_panel(const Linear<T>* linears, const T* input, const Work& work) {
        const PartTimer timer(member_, LINEAR_LAYERS);
        const int64_t units = cuts(linears->outputs, PIECE);  // of the least width
        const int64_t most = std::min(experts_.count, routes_.rows * routes_.each);
        int64_t last = -1;
        std::optional<Inputs<T>> inputs;
        member_.each(most * units, [&](int64_t unit) {
            if (unit / units >= routes_.used[0]) return;
            const int64_t expert = routes_.used[1 + unit / units];
            const int64_t first = expert ? routes_.ends[expert - 1] : 0;
            if (expert != std::exchange(last, expert))
                inputs.emplace(routes_.ends[expert] - first, input + first * linears->inputs, linears[expert], member_.members());
            if (unit % units < inputs->units(linears[expert]))
                work(Panel{expert, first, inputs->cut(linears[expert], unit % units)}, *inputs);
        });
    }

    void add_up(int64_t row, int64_t width, T* output) {
        static thread_local std::vector<float> sums;
        sums.assign(width, 0.0f);
        for (int64_t choice = row * routes_.each; choice < (row + 1) * routes_.each; choice++) {
            const int64_t place = routes_.places[choice];
            if (place < 0) continue;
            const T* made = routes_.made + place * width;
            const float share = routes_.shares[choice];
            for (int64_t i = 0; i < width; i++) sums[i] += share * widen(made[i]);
        }
        for (int64_t i = 0; i < width; i++) narrow(sums[i], output + i);
    }

    Team::Member& member_;
    const Experts<T>& experts_;
    const Routes<T>& routes_;
};
