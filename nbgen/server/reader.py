"""A reader of runs: one wake-up for whatever happens to any of them. Knows nothing of how they are rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Reader:
    """Sleeps until one of what it watches calls its watchers, or until it is told to leave."""

    def __init__(self) -> None:
        self.gone = False
        self._event = asyncio.Event()
        self._watched: list[set[Callable[[], None]]] = []

    def watch(self, watchers: set[Callable[[], None]]) -> None:
        """Wake when those watchers are called."""
        watchers.add(self.wake)
        self._watched.append(watchers)

    async def wait(self, seconds: float | None = None) -> bool:
        """Until something happened; False when nothing did within `seconds`."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def wake(self) -> None:
        """Let `wait` return."""
        self._event.set()

    def leave(self) -> None:
        """The one who reads has gone: wake whoever writes for them."""
        self.gone = True
        self.wake()

    def close(self) -> None:
        """Watch nothing any more."""
        for watchers in self._watched:
            watchers.discard(self.wake)
        self._watched = []
