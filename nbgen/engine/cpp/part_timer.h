// How long the first member of a team is at the parts of a step, where a library is built to say so (`TIMED`): nothing else is
// slower for it.

#pragma once

#include <utility>

#include "team.h"

enum StepPart { LINEAR_LAYERS, ATTENTION, STEP_PARTS };

#ifdef TIMED

inline double part_seconds[STEP_PARTS] = {};

// For as long as it is there. None is inside another.
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
