"""Ctrl-C while something ends that must not be lost, as where Stop is clicked twice, and while nothing happens.

Knows signals; nothing of what ends, nor of what is awaited.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: So soon Ctrl-C is heard by who waits.
TICK_SECONDS = 0.1


class Interrupts:
    """Within it Ctrl-C is heard until `ignore` is called, and not from then on. On another than the main thread, which
    alone hears it, this does nothing.
    """

    def __enter__(self) -> Interrupts:
        heard = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if heard else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def ignore(self) -> None:
        """By a function, not by SIG_IGN, which processes that are started meanwhile would keep."""
        if self._before is not None:
            signal.signal(signal.SIGINT, lambda *_: None)


@contextmanager
def waking() -> Iterator[None]:
    """Within it the running loop wakes up now and then: ipykernel cancels the cell's task on a signal, of which a loop
    that waits for a socket does not hear (7.4).
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tick() -> None:
        nonlocal timer
        timer = loop.call_later(TICK_SECONDS, tick)

    timer = loop.call_later(TICK_SECONDS, tick)
    try:
        yield
    finally:
        timer.cancel()
