// Threads that do the phases of a step together.
//
// A phase is a number of units. Each member takes those of its own range first, in order, and then what the others have
// not begun: whoever the system holds up keeps nobody waiting but for the unit that it is at. What a phase has made
// everybody sees in the next one. Nobody sleeps between phases, which follow each other within microseconds.

#pragma once

#include <omp.h>

#include <atomic>
#include <thread>
#include <vector>

#include "numbers.h"

class Team {
  public:
    explicit Team(int64_t members) : members_(members) {}

    // What one member goes through; each makes its own.
    class Member {
      public:
        Member(Team& team, int64_t number) : team_(team), number_(number) {}

        // `work(unit)` for all units below `count`, by whoever is there; back when all are done.
        template <typename Work>
        void each(int64_t count, const Work& work) {
            Counter* taken = &team_.counters_[at_++ * (team_.members_ + 1)];
            std::atomic<int64_t>& done = taken[team_.members_].value;
            for (int64_t i = 0; i < team_.members_; i++) {
                const int64_t owner = (number_ + i) % team_.members_;
                const int64_t first = count * owner / team_.members_, end = count * (owner + 1) / team_.members_;
                for (int64_t unit; (unit = first + taken[owner].value.fetch_add(1)) < end;) {
                    work(unit);
                    done.fetch_add(1, std::memory_order_release);
                }
            }
            for (int64_t waited = 0; done.load(std::memory_order_acquire) < count; waited++)
                if (waited > PATIENCE) std::this_thread::yield();
        }

      private:
        Team& team_;
        int64_t number_, at_ = 0;
    };

    // `work(member)` by every member, `phases` of them at most.
    template <typename Work>
    void run(int64_t phases, const Work& work) {
        counters_ = std::vector<Counter>(phases * (members_ + 1));
#pragma omp parallel num_threads(static_cast<int>(members_))
        {
            // A system that has fewer threads to give leaves ranges without an owner, which the others do.
            Member member(*this, omp_get_thread_num());
            work(member);
        }
    }

  private:
    static constexpr int64_t PATIENCE = 20000;  // looks, of some nanoseconds each

    // On a cache line of its own.
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };

    int64_t members_;
    std::vector<Counter> counters_;  // of each phase: the units that each range has given out, and those done
};
