"""Where the time of a GPU's step goes: each kernel counts from the end of the one before it to its own.

So kernels that come up while others end count for what they add. Knows no model.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

#: What a kernel's name says of it, the first that fits.
KINDS = {
    "products": r"multiply_one_row|nvjet|gemm|splitK",
    "attention": r"attend|merge_splits|turn_and_store",
    "norms and gates": r"add_and_norm|gate",
    "the likeliest tokens": r"best_of",
}
OTHERS, IDLE = "copies and others", "nothing"
#: Steps that count, and before them others.
STEPS, SLOWED = 12, 4


class Launch(NamedTuple):
    """From when to when a kernel or copy ran, in microseconds."""

    start: float
    end: float
    name: str


def taken(step: Callable[[], object]) -> dict[str, float]:
    """Microseconds of a step by kind, after some that the profiler slows; nothing where there is no GPU."""
    if not torch.cuda.is_available():
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(SLOWED + STEPS):
            step()
        torch.cuda.synchronize()
    events = [event for event in watched.events() if event.device_type == DeviceType.CUDA]
    launches = sorted(Launch(event.time_range.start, event.time_range.end, event.name) for event in events)
    return parts(launches[len(launches) * SLOWED // (SLOWED + STEPS) :], STEPS)


def parts(launches: Iterable[Launch], steps: int) -> dict[str, float]:
    """Microseconds of one of so many steps, by kind."""
    spent: defaultdict[str, float] = defaultdict(float)
    ended = None
    for launch in sorted(launches, key=lambda launch: launch.end):
        ended = launch.start if ended is None else ended
        spent[IDLE] += max(0.0, launch.start - ended)
        spent[_kind(launch.name)] += launch.end - max(ended, launch.start)
        ended = launch.end
    return {kind: microseconds / steps for kind, microseconds in spent.items()}


def _kind(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), OTHERS)
