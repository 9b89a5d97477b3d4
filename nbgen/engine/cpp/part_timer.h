// Measures how long a team's first member spends in the parts of a step, in libraries that are built with `TIMED`. Others are no
// slower for it.

#pragma once

#include <utility>

#include "team.h"

enum StepPart { LINEAR_LAYERS, ATTENTION, STEP_PARTS };

#ifdef TIMED

inline double part_seconds[STEP_PARTS] = {};

// Times a part for as long as it lives. Timers are never nested.
class PartTimer {
  public:
    PartTimer(const Team::Member& member, StepPart part) : first_(member.number() == 0), part_(part) {}
    ~PartTimer() {
        if (first_) part_seconds[part_] += std::chrono::duration<double>(Clock::now() - started_).count();
    }

  private:
    using Clock = std::chrono::steady_clock;

    bool first_;
    StepPart part_;
    Clock::time_point started_ = Clock::now();
};

#else

struct PartTimer {
    PartTimer(const Team::Member&, StepPart) {}
};

#endif
