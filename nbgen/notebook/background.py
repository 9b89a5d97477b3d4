"""An answer that is written while the kernel goes on: read by a thread, stopped at any time, awaited or asked.

Knows a stream and where it is shown; nothing of magics.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from nbgen.notebook.result import Result
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.text_stream import TextStream

Shown = Callable[[Result, str], None]
Ended = Callable[[Result, Exception | None], None]


class BackgroundRun:
    """`run.text` so far; `run.cancel()` stops it on the server; `run.wait()` or `await run` gives the result."""

    def __init__(self, answer: TextStream, shown: Shown, ended: Ended) -> None:
        self.error: Exception | None = None
        self._answer = answer
        self._shown = shown
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        #: Joining the thread would not do: before Python 3.13 one that is interrupted takes the thread for ended.
        self._over = threading.Event()
        # The context says which cell the output belongs to.
        threading.Thread(target=contextvars.copy_context().run, args=(self._work,), daemon=True).start()
        self._started.wait(5)

    @property
    def text(self) -> str:
        """What has come so far."""
        return self._answer.result.text

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return not self._over.is_set()

    def cancel(self) -> None:
        """Stop it; what has come stays."""
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    @short_traceback
    def wait(self, timeout: float | None = None) -> Result:
        """The result, once there is one. Raises TimeoutError, or the error that ended the run."""
        if not self._over.wait(timeout):
            raise TimeoutError(f"still running after {timeout} s")
        if self.error is not None:
            raise self.error
        return self._answer.result

    def __await__(self) -> Generator[Any, None, Result]:
        return asyncio.to_thread(self.wait).__await__()

    def __repr__(self) -> str:
        if self.error is not None and not self.running:
            return f"<{type(self.error).__name__}: {self.error}>"
        state = "running" if self.running else self._answer.result.finish_reason
        return f"<{state}: {self.text[-60:]!r}>"

    def _work(self) -> None:
        try:
            asyncio.run(self._read())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # Raised where it is waited for; here nobody would see it.
            self.error = error
        finally:
            self._started.set()
            try:
                self._ended(self._answer.result, self.error)
            finally:
                self._over.set()

    async def _read(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        async for text in self._answer:
            self._shown(self._answer.result, text)
