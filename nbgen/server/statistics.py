"""Counts and durations of one model's inferences, in the words of Triton's statistics extension.

A successful request counts once, even if it was batched with others; a refused one counts nowhere. Knows no wire.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Literal, NamedTuple, get_args

COMPUTE = ("compute_input", "compute_infer", "compute_output")
#: Most responses of a stream with an entry of their own; the last entry also counts all later ones.
MAX_RESPONSES = 1024
#: Why a request failed: no room or time for it, its caller left, the model raised an error, anything else.
Reason = Literal["REJECTED", "CANCELED", "BACKEND", "OTHER"]
REASONS: tuple[Reason, ...] = get_args(Reason)


class Timing(NamedTuple):
    """Nanoseconds that one request was computed. `leads` is true for exactly one request of each batch's execution."""

    compute_input: int = 0
    compute_infer: int = 0
    compute_output: int = 0
    batch: int = 1
    executed_batch: int = 1
    leads: bool = True


class Duration:
    """A count and a total duration."""

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def fields(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class Statistics:
    """The statistics of one model since the server started."""

    def __init__(self) -> None:
        self.inferences = 0
        self.executions = 0
        self.pending = 0
        self.failures: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._last = 0
        self._durations: dict[str, Duration] = defaultdict(Duration)
        self._responses: dict[int, dict[str, Duration]] = defaultdict(lambda: defaultdict(Duration))
        self._batches: dict[int, dict[str, Duration]] = defaultdict(lambda: defaultdict(Duration))

    def succeeded(self, ns: int, timing: Timing) -> None:
        """Count a request that was answered completely after `ns`. Time not spent computing counts as queueing."""
        self._last = time.time_ns() // 1_000_000
        self.inferences += max(1, timing.batch)
        self.executions += timing.leads
        self._durations["success"].add(ns)
        for name in COMPUTE:
            self._durations[name].add(getattr(timing, name))
        self._durations["queue"].add(max(0, ns - sum(getattr(timing, name) for name in COMPUTE)))
        if timing.leads:
            for name in COMPUTE:
                self._batches[timing.executed_batch][name].add(getattr(timing, name))

    def failed(self, ns: int, reason: Reason) -> None:
        """Count a request that ended in an error, or whose caller left."""
        self._durations["fail"].add(ns)
        self.failures[reason] += 1

    def duration(self, name: str) -> Duration:
        """The duration of this name in `inference_stats`."""
        return self._durations[name]

    def responded(self, index: int, ns: int, outcome: str = "success") -> None:
        """Count response number `index` of a request; `outcome` is success, fail, empty_response or cancel."""
        response = self._responses[min(index, MAX_RESPONSES - 1)]
        response[outcome].add(ns)
        if outcome == "success":
            response["compute_infer"].add(ns)
            response["compute_output"].add(0)

    def fields(self, name: str, version: str, *, decoupled: bool) -> dict[str, Any]:
        """One entry of `model_stats`."""
        names = ("success", "fail", "queue", *COMPUTE, "cache_hit", "cache_miss")
        outcomes = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
        return {
            "name": name,
            "version": version,
            "last_inference": self._last,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {key: self._durations[key].fields() for key in names},
            "response_stats": {
                str(index): {key: found[key].fields() for key in outcomes}
                for index, found in sorted(self._responses.items())
                if decoupled
            },
            "batch_stats": [
                {"batch_size": size, **{key: found[key].fields() for key in COMPUTE}}
                for size, found in sorted(self._batches.items())
            ],
            "memory_usage": [],
        }
