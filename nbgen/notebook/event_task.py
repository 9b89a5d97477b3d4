"""Awaited events, read by a task of their own, which closes whatever it has opened, however it is left.

Generators that await each other can be closed by nobody else: at its end a loop closes all of them at once, the inner
ones before the outer, and each complains. Knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from nbgen.notebook.client import Event

#: What comes after `stop`, and at the end of a loop.
LEFT: Event = ("left", {})


class EventTask:
    """An iterator of the events, which are read ahead. `stop` may be called on any thread, any number of times."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._came: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._read(events))
        self._task.add_done_callback(self._ended)

    def __aiter__(self) -> EventTask:
        return self

    async def __anext__(self) -> Event:
        came = await self._came.get()
        if isinstance(came, BaseException):
            raise came
        return came

    def stop(self) -> None:
        """Have it close what it reads from."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def ended(self) -> None:
        """Return once all is closed."""
        if not self._task.done():
            await asyncio.wait([self._task])

    async def _read(self, events: AsyncGenerator[Event]) -> None:
        async with aclosing(events):
            async for event in events:  # it waits nowhere else, so that to cancel it ends every generator
                self._came.put_nowait(event)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._came.put_nowait(LEFT if task.cancelled() else task.exception() or StopAsyncIteration())
