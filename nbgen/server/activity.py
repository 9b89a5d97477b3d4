"""For how long nobody has asked anything. Knows the clock, and not what is asked."""

import time


class Activity:
    """Of one engine: each question, answer and command is noted, so that none is too short to be seen."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def note(self) -> None:
        """Somebody asks or has been answered now."""
        self._last = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Since the last that was noted."""
        return time.monotonic() - self._last
