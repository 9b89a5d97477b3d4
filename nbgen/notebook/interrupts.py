"""Ctrl-C: a second one must not lose results that are being put together, and a waiting event loop must notice it.

Knows signals; nothing of the work that they end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.getipython import get_ipython

#: How long a waiting event loop may take to notice Ctrl-C.
TICK_SECONDS = 0.1


class Interrupts:
    """A context in which Ctrl-C works until `ignore` is called, and is ignored from then on.

    It does nothing outside the main thread, as no other thread gets Ctrl-C.
    """

    def __enter__(self) -> Interrupts:
        heard = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if heard else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def ignore(self) -> None:
        """Ignore Ctrl-C by a handler, not by SIG_IGN, which processes started meanwhile would inherit."""
        if self._before is not None:
            signal.signal(signal.SIGINT, lambda *_: None)


#: Tasks that wait in a terminal's IPython.
_waiting: set[asyncio.Task[Any]] = set()


@contextmanager
def waking() -> Iterator[None]:
    """A context in which the running loop wakes up now and then, to notice that ipykernel cancelled the cell's task.

    ipykernel (7.4) cancels it in a signal handler, and a signal does not wake a loop that waits for a socket. IPython
    in a terminal would break off the loop, which closes nothing; here the task is cancelled there, too.
    """
    loop, task, terminal = asyncio.get_running_loop(), asyncio.current_task(), _is_broken_off()
    assert task is not None
    timer: asyncio.TimerHandle

    def tick() -> None:
        nonlocal timer
        timer = loop.call_later(TICK_SECONDS, tick)

    timer = loop.call_later(TICK_SECONDS, tick)
    if terminal:
        _waiting.add(task)
        signal.signal(signal.SIGINT, _cancel)
    try:
        yield
    finally:
        timer.cancel()
        _waiting.discard(task)
        if terminal and not _waiting and signal.getsignal(signal.SIGINT) is _cancel:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_broken_off() -> bool:
    """Whether Ctrl-C would break off the running loop if `_cancel` did not handle it."""
    if get_ipython() is None or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _cancel)


def _cancel(*given: Any) -> None:
    """Cancel the tasks that wait in the running loop. With none left, or in a plain cell, do what Python does."""
    heard = [task for task in _waiting if task.get_loop().is_running() and not task.cancelling()]
    for task in heard:
        task.cancel()
    if not heard:
        signal.default_int_handler(*given)
