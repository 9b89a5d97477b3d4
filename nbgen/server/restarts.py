"""Decides whether an engine may be restarted automatically: after crashes, and after failed loads.

Starts nothing itself.
"""

from __future__ import annotations

import time
from collections import deque

MAX_RESTARTS = 3
RESTART_WINDOW = 600.0


class Restarts:
    """Counts crashes: more than `MAX_RESTARTS` within `RESTART_WINDOW` seconds are too many.

    A failed load is followed by a pause as long as the load, so that at most half of the time is spent on loading.
    """

    def __init__(self) -> None:
        self._crashes: deque[float] = deque(maxlen=MAX_RESTARTS + 1)
        self._began = self._pause_ends = 0.0

    def begun(self) -> None:
        """Note that a load begins."""
        self._began = time.monotonic()

    def failed(self) -> None:
        """Note that the load has failed."""
        now = time.monotonic()
        self._pause_ends = now + now - self._began

    def crashed(self) -> None:
        """Note one more crash."""
        self._crashes.append(time.monotonic())

    def forget(self) -> None:
        """Forget all crashes, for another model."""
        self._crashes.clear()

    @property
    def paused(self) -> bool:
        """Whether the last load failed too recently to be tried again."""
        return time.monotonic() < self._pause_ends

    @property
    def allowed(self) -> bool:
        """Whether the engine may be started again."""
        return sum(time.monotonic() - at < RESTART_WINDOW for at in self._crashes) <= MAX_RESTARTS
