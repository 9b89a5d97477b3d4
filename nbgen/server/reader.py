"""A reader of runs: one wake-up for whatever happens to any of them. Knows nothing of how they are rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Reader:
    """Sleeps until one of what it watches calls its watchers, or until it is told to leave."""

    def __init__(self) -> None:
        self.gone = False
        self._happened = False
        self._waiter: asyncio.Future[None] | None = None
        self._at_once: Callable[[], bool] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._watched: list[set[Callable[[], None]]] = []

    def watch(self, watchers: set[Callable[[], None]]) -> None:
        """Wake when those watchers are called."""
        watchers.add(self.wake)
        self._watched.append(watchers)

    async def wait(self, seconds: float | None = None, at_once: Callable[[], bool] | None = None) -> bool:
        """Until something happened; False when nothing did for `seconds`.

        What happens is first left to `at_once`, on the spot: nobody wakes while that says true, since a task's turn
        costs as much as all else that a token needs. What it raises is raised here.
        """
        if not self._happened:
            loop = asyncio.get_running_loop()
            self._waiter, self._at_once, self._last = loop.create_future(), at_once, loop.time()
            if seconds is not None:
                self._ring(self._waiter, seconds)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._alarm is not None:
                    self._alarm.cancel()
        happened, self._happened = self._happened, False
        return happened

    def wake(self) -> None:
        """Let `wait` return, unless what happened is dealt with at once."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._deal(waiter):
            return
        self._happened = True
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def leave(self) -> None:
        """The one who reads has gone: wake whoever writes for them."""
        self.gone = True
        self.wake()

    def close(self) -> None:
        """Watch nothing any more, and hold nothing of whoever waited."""
        for watchers in self._watched:
            watchers.discard(self.wake)
        self._watched, self._at_once = [], None

    def _deal(self, waiter: asyncio.Future[None]) -> bool:
        if self._at_once is None or self.gone:
            return False
        self._last = waiter.get_loop().time()
        try:
            return self._at_once()
        except Exception as error:  # whatever it is, who waits is told
            if not waiter.done():
                waiter.set_exception(error)
            return False

    def _ring(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """End the wait if nothing has happened for so long; look again later if something has."""
        loop = waiter.get_loop()
        left = self._last + seconds - loop.time()
        if left > 0:
            self._alarm = loop.call_later(left, self._ring, waiter, seconds)
        elif not waiter.done():
            waiter.set_result(None)
