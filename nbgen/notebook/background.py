"""An answer that is written while the kernel goes on: a thread reads it; it can be stopped, awaited or looked at.

Knows a stream and where it is shown; nothing of magics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from nbgen.notebook.interrupts import TICK_SECONDS
from nbgen.notebook.result import Result
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.task_thread import TaskThread
from nbgen.notebook.text_stream import TextStream

Shown = Callable[[Result, str], None]
Ended = Callable[[Result, BaseException | None], None]


class BackgroundRun:
    """`run.text` so far; `run.cancel()` stops it on the server; `run.wait()` or `await run` gives the result."""

    def __init__(self, answer: TextStream, shown: Shown, ended: Ended) -> None:
        self._answer = answer
        self._shown = shown
        self._ended = ended
        self._thread = TaskThread(self._read, lambda failure: ended(answer.result, failure))
        self._thread.start()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._answer.result.text

    @property
    def error(self) -> BaseException | None:
        """What ended it, if that was an error."""
        return self._thread.failure

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self._thread.running

    def cancel(self) -> None:
        """Stop it; the text so far stays."""
        self._thread.cancel()

    @short_traceback
    def wait(self, timeout: float | None = None) -> Result:
        """The result, once there is one. Raises TimeoutError, or the error that ended the run."""
        if not self._thread.wait(timeout):
            raise TimeoutError(f"still running after {timeout} s")
        # Show the end again, in the cell that waits: programs that run notebooks take output of the running cell only.
        self._ended(self._answer.result, self.error)
        if self.error is not None:
            raise self.error
        return self._answer.result

    def __await__(self) -> Generator[Any, None, Result]:
        return self._whole().__await__()

    def __repr__(self) -> str:
        if self.error is not None and not self.running:
            return f"<{type(self.error).__name__}: {self.error}>"
        state = "running" if self.running else self._answer.result.finish_reason
        return f"<{state}: {self.text[-60:]!r}>"

    async def _whole(self) -> Result:
        # A waiting thread would go on after this is cancelled, and an idle event loop would not notice a cancellation.
        while self.running:  # noqa: ASYNC110
            await asyncio.sleep(TICK_SECONDS)
        return self.wait()

    async def _read(self) -> None:
        async for text in self._answer:
            self._shown(self._answer.result, text)
