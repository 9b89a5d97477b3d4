"""A coroutine on a thread of its own: cancelled from any other, and waited for by an event.

Joining the thread would not do: before Python 3.13 one that is interrupted takes the thread for ended. Knows nothing of
what runs there.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

#: Seconds after which an interrupt is heard that came in the moment before a wait began: Python sleeps through it.
HEARS_AGAIN = 0.5

Work = Callable[[], Coroutine[Any, Any, None]]
Ended = Callable[[BaseException | None], None]


class TaskThread:
    """Runs `work` once started, in a copy of this context. `failure` is what ended it, but for a cancellation.

    `ended` is told of it on the thread, before anybody who waits.
    """

    def __init__(self, work: Work, ended: Ended = lambda failure: None) -> None:
        self.failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._over = threading.Event()
        self._abandoned = False
        # The context says which cell the output belongs to.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run, work, ended), daemon=True)

    def start(self) -> None:
        """Begin. An interrupt in the middle of it leaves open whether it has: then it has to be cancelled."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended, nor been told of."""
        return not self._over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        while timeout is None and not self._over.wait(HEARS_AGAIN):
            pass
        return self._over.wait(timeout)

    def cancel(self) -> None:
        """Have it end where it waits next; nothing where it has ended."""
        if not self._started.wait(1):  # its start was interrupted: it is not to begin any more
            self._abandoned = True
            self._over.set()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have it called on the loop, once that runs; nothing where it has ended."""
        self._started.wait()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, work: Work, ended: Ended) -> None:
        try:
            asyncio.run(self._main(work))
        except asyncio.CancelledError:
            pass
        except BaseException as failure:  # Raised where it is waited for; here nobody would see it.
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
