// Threads that do the phases of a step together.
//
// A phase is a number of units. Each member takes the units of its own range first, in order, and then those that others have not
// begun. A thread that the system holds up delays the others only by the units it has taken, and a member that never comes is not
// missed. In the next phase, every member sees all that this one has written.

#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/prctl.h>
#endif

constexpr int64_t LOOKS = 20000;  // checks before a waiting thread gives up the processor: some ten microseconds

// Sleeps for a moment. To yield would cost this thread its turns beside others that compute: Linux counts a yield as a whole slice.
inline void rest() {
#ifdef __linux__
    [[maybe_unused]] static thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // not 50 us late
#endif
    std::this_thread::sleep_for(std::chrono::microseconds(10));
}

// Returns once `done()` is true, which other threads bring about.
template <typename Done>
void wait_until(const Done& done) {
    for (int64_t look = 0; !done(); look++)
        if (look > LOOKS) rest();
}

// The process's threads for teams, which sleep while there is nothing to do.
class Pool {
  public:
    static Pool& instance() {
        static Pool* pool = new Pool;  // never destroyed: its threads end with the process
        return *pool;
    }

    // Runs `work(0)` on this thread, and `work` for other numbers below `members` on those threads that wake up in time.
    void run(int64_t members, const std::function<void(int64_t)>& work) {
        std::unique_lock<std::mutex> alone(callers_, std::try_to_lock);
        if (members < 2 || !alone) return work(0);
        while (threads_ < members - 1 && begin_one()) threads_++;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            free_ = 1;
            members_ = members;
            jobs_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        work(0);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = nullptr;
        }
        wait_until([&] { return !inside_.load(std::memory_order_acquire); });
    }

  private:
    // Starts a thread; false where the system refuses one.
    bool begin_one() {
        try {
            std::thread([this] { serve(); }).detach();
        } catch (const std::system_error&) {
            return false;
        }
        return true;
    }

    void serve() {
        int64_t seen = 0;
        for (;;) {
            for (int64_t look = 0; look < LOOKS && jobs_.load(std::memory_order_acquire) == seen; look++) {
            }
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return jobs_.load() != seen; });
            seen = jobs_.load();
            if (!work_ || free_ >= members_) continue;
            const int64_t number = free_++;
            const auto& work = *work_;
            inside_.fetch_add(1);
            lock.unlock();
            work(number);
            inside_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex callers_, mutex_;
    std::condition_variable wake_;
    std::atomic<int64_t> jobs_{0}, inside_{0};
    const std::function<void(int64_t)>* work_ = nullptr;
    int64_t free_ = 0, members_ = 0, threads_ = 0;
};

class Team {
  public:
    // A team of `members` for one run, of so many phases at most.
    Team(int64_t members, int64_t phases) : members_(members), phases_(phases), counters_(phases * (members + 1)) {}

    // One member's way through the phases; each thread makes its own.
    class Member {
      public:
        Member(Team& team, int64_t number) : team_(team), number_(number) {}

        int64_t number() const { return number_; }
        int64_t members() const { return team_.members_; }

        // Runs `work(unit)` for all units below `count` on the members that are there; returns when all are done.
        template <typename Work>
        void each(int64_t count, const Work& work) {
            assert(at_ < team_.phases_);  // beyond them it would count in others' memory
            Counter* taken = &team_.counters_[at_++ * (team_.members_ + 1)];
            std::atomic<int64_t>& done = taken[team_.members_].value;
            const int64_t some = std::max<int64_t>(1, count / (team_.members_ * SHARES));
            for (int64_t i = 0; i < team_.members_; i++) {
                const int64_t owner = (number_ + i) % team_.members_;
                const int64_t first = count * owner / team_.members_, end = count * (owner + 1) / team_.members_;
                for (int64_t unit; (unit = first + taken[owner].value.fetch_add(some)) < end;) {
                    const int64_t last = std::min(end, unit + some);
                    for (int64_t each = unit; each < last; each++) work(each);
                    done.fetch_add(last - unit, std::memory_order_release);
                }
            }
            wait_until([&] { return done.load(std::memory_order_acquire) >= count; });
        }

      private:
        Team& team_;
        int64_t number_, at_ = 0;
    };

    // Runs `work(member)` for every member that comes.
    template <typename Work>
    void run(const Work& work) {
        Pool::instance().run(members_, [&](int64_t number) {
            Member member(*this, number);
            work(member);
        });
    }

  private:
    static constexpr int64_t SHARES = 32;    // parts that a member's range is handed out in, or up to twice as many

    // On a cache line of its own.
    struct alignas(64) Counter {
        std::atomic<int64_t> value{0};
    };

    int64_t members_, phases_;
    std::vector<Counter> counters_;  // for each phase: the units handed out of each range, and those done
};
