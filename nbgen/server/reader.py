"""A reader of runs: waits for an event of any of them. Knows nothing of how they are rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Reader:
    """Sleeps until one of the watched objects calls its watchers, or until `leave` is called."""

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
        """Wait until something happens; False if nothing does for `seconds`.

        Each event is first given to `at_once`, inside the event's own call. While it returns True this task sleeps on,
        since waking it costs as much as all other work on a token. What `at_once` raises is raised here.
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
        """Let `wait` return, unless `at_once` handles the event."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._deal(waiter):
            return
        self._happened = True
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def leave(self) -> None:
        """Note that the client has left, and wake the task that writes to it."""
        self.gone = True
        self.wake()

    def close(self) -> None:
        """Stop watching, and drop the reference to `at_once`."""
        for watchers in self._watched:
            watchers.discard(self.wake)
        self._watched, self._at_once = [], None

    def _deal(self, waiter: asyncio.Future[None]) -> bool:
        if self._at_once is None or self.gone:
            return False
        self._last = waiter.get_loop().time()
        try:
            return self._at_once()
        except Exception as error:  # whatever it is, `wait` raises it
            if not waiter.done():
                waiter.set_exception(error)
            return False

    def _ring(self, waiter: asyncio.Future[None], seconds: float) -> None:
        """End the wait if nothing has happened for `seconds`; otherwise look again later."""
        loop = waiter.get_loop()
        left = self._last + seconds - loop.time()
        if left > 0:
            self._alarm = loop.call_later(left, self._ring, waiter, seconds)
        elif not waiter.done():
            waiter.set_result(None)
