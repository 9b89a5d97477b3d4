"""How often an engine may be started again by itself after crashes."""

from __future__ import annotations

import time
from collections import deque

MAX_RESTARTS = 3
RESTART_WINDOW = 600.0


class Restarts:
    """Counts crashes: more than `MAX_RESTARTS` within `RESTART_WINDOW` seconds are too many."""

    def __init__(self) -> None:
        self._crashes: deque[float] = deque(maxlen=MAX_RESTARTS + 1)

    def crashed(self) -> None:
        """Note one more."""
        self._crashes.append(time.monotonic())

    def forget(self) -> None:
        """Begin anew, for another model."""
        self._crashes.clear()

    @property
    def allowed(self) -> bool:
        """Whether the engine may be started again."""
        return sum(time.monotonic() - at < RESTART_WINDOW for at in self._crashes) <= MAX_RESTARTS
