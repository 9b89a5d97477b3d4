"""An engine's pulse: what it said last, sent again while it computes or loads, so that nobody takes it for dead.

Whoever was stopped, or waits for what never comes, uses no processor and falls silent. So does an engine that admits
nobody any more, since one request's admission does not end. Knows neither models nor wires.
"""

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from nbgen.engine_state import EngineStatus, LoadProgress

#: Between two looks at a thread that says nothing.
LOOK_SECONDS = 5.0
#: Of a processor: what a thread that computes uses between two looks, and one that waits does not.
USED_SECONDS = 0.01
#: A computation of a GPU that lasts longer never ends: whoever waits for one uses a processor all the while. On a CPU
#: one may last as long as a request may run, for then nobody waits for it any more.
LONGEST = 300.0
#: An admission that lasts longer never ends: a chat template may loop. The text of a large context takes seconds.
ADMISSION_SECONDS = 30.0
#: With media, each of which may take its decoder's time, after that has started.
MEDIA_SECONDS = 300.0

Given = TypeVar("Given")
Made = TypeVar("Made")


class Pulse:
    """Of the thread that enters it, until that leaves it; of all the process's threads, if `whole`."""

    def __init__(
        self,
        send: Callable[[EngineStatus | LoadProgress], None],
        device: str = "cpu",
        run_seconds: float | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """`send` may be called by any thread; `device` is the kind that computes; a request may run `run_seconds`."""
        self._send = send
        self._longest = max(LONGEST, run_seconds or math.inf) if device == "cpu" else LONGEST
        self._whole = whole
        self._status: EngineStatus | LoadProgress = EngineStatus()
        self._said = time.monotonic()
        #: When what other threads do has to be done.
        self._deadlines: dict[int, float] = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._clock = time.process_time if self._whole else _processor_clock()
        self._used = self._clock()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()

    def say(self, status: EngineStatus | LoadProgress) -> None:
        """Send what is so now."""
        self._status, self._said = status, time.monotonic()
        if not self._overdue:
            self._send(status)

    def bounded(self, work: Callable[[Given], Made], seconds: float) -> Callable[[Given], Made]:
        """`work` that others wait for. While it lasts longer the pulse is still, whoever does it."""

        def run(given: Given) -> Made:
            thread = threading.get_ident()
            self._deadlines[thread] = time.monotonic() + seconds
            try:
                return work(given)
            finally:
                del self._deadlines[thread]

        return run

    def look(self) -> None:
        """Send the last status again, if nothing has been said for a while and the thread computes."""
        used, self._used = self._used, self._clock()
        silent = time.monotonic() - self._said
        if self._used - used >= USED_SECONDS and LOOK_SECONDS <= silent < self._longest and not self._overdue:
            self._send(self._status)

    @property
    def _overdue(self) -> bool:
        return time.monotonic() > min(tuple(self._deadlines.values()), default=math.inf)

    def _run(self) -> None:
        while not self._left.wait(LOOK_SECONDS):
            self.look()


def _processor_clock() -> Callable[[], float]:
    """What this thread has used of a processor, for others to read; of the process where a system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
