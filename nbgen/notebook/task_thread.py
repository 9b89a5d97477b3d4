"""A coroutine on a thread of its own: any thread can cancel it, or wait for it by an event.

Waiting by `Thread.join` would not do: before Python 3.13 a join that is interrupted takes the thread for ended. Knows
nothing of what runs there.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

#: Longest wait at a time: Python does not notice an interrupt that comes just before a wait until the wait ends.
HEARS_AGAIN = 0.5

Work = Callable[[], Coroutine[Any, Any, None]]
Ended = Callable[[BaseException | None], None]


class TaskThread:
    """Runs `work` once started, in a copy of this context. `failure` is the error that ended it, unless cancelled.

    `ended` is called with it on the thread, before any `wait` returns.
    """

    def __init__(self, work: Work, ended: Ended = lambda failure: None) -> None:
        self.failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._over = threading.Event()
        self._abandoned = False
        # The context holds which cell the output belongs to.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run, work, ended), daemon=True)

    def start(self) -> None:
        """Begin. After an interrupt in here it may or may not have begun: call `cancel` then."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet, `ended` included."""
        return not self._over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, at most so many seconds. Returns whether it has."""
        while timeout is None and not self._over.wait(HEARS_AGAIN):
            pass
        return self._over.wait(timeout)

    def cancel(self) -> None:
        """Cancel it, at its next await; does nothing if it has ended."""
        if not self._started.wait(1):  # its start was interrupted: keep it from beginning later
            self._abandoned = True
            self._over.set()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the function on the event loop, once that runs; does nothing if it has ended."""
        self._started.wait()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, work: Work, ended: Ended) -> None:
        try:
            asyncio.run(self._main(work))
        except asyncio.CancelledError:
            pass
        except BaseException as failure:  # Whoever waits raises it; here nobody would see it.
            self.failure = failure
        finally:
            self._started.set()
            try:
                ended(self.failure)
            finally:
                self._over.set()

    async def _main(self, work: Work) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        if not self._abandoned:
            await work()
