"""Awaited events, read by a task of their own, which closes the generators that it has opened, however reading ends.

Only such a task can close generators that await each other: at its end an event loop would close all at once, inner
ones before outer ones, and each would complain. Knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from nbgen.notebook.client import Event

#: The event after `stop`, or when the event loop ends.
LEFT: Event = ("left", {})


class EventTask:
    """An asynchronous iterator of the events, read ahead. Any thread may call `stop`, any number of times."""

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
        """End the task, which closes the events that it reads."""
        with suppress(RuntimeError):  # the loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def ended(self) -> None:
        """Wait until the task has closed the events."""
        if not self._task.done():
            await asyncio.wait([self._task])

    async def _read(self, events: AsyncGenerator[Event]) -> None:
        async with aclosing(events):
            async for event in events:  # its only await, so a cancellation reaches every generator
                self._came.put_nowait(event)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._came.put_nowait(LEFT if task.cancelled() else task.exception() or StopAsyncIteration())
