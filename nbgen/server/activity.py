"""How long an engine has been idle. Knows the clock, and not what is asked of the engine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """When one engine was last used: each request, answer and command is noted, however short it is."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._under_way = 0

    def note(self) -> None:
        """Note that the engine is used now."""
        self._last = time.monotonic()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """Count the engine as in use while this context lasts."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self.note()

    @property
    def lasts(self) -> bool:
        """Whether something is under way that `lasting` counts."""
        return self._under_way > 0

    @property
    def idle_seconds(self) -> float | None:
        """Seconds since the last use; None while the engine is in use."""
        return None if self._under_way else time.monotonic() - self._last
