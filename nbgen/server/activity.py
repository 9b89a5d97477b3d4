"""For how long nobody has asked anything. Knows the clock, and not what is asked."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Of one engine: each question, answer and command is noted, so that none is too short to be seen."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._under_way = 0

    def note(self) -> None:
        """Somebody asks or has been answered now."""
        self._last = time.monotonic()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Around what somebody asks and waits for."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.note()

    @property
    def idle_seconds(self) -> float | None:
        """Since the last of it; None while any lasts."""
        return None if self._under_way else time.monotonic() - self._last
