"""An engine's pulse: sends its last status again while it computes or loads, so that nobody takes it for dead.

An engine that is stopped, or waits for something that never comes, uses no CPU time: then the pulse stops. It stops too
if the admission of a request does not end, since no other request is admitted then. A process of modules, which may
rightly wait, says every few seconds that it can speak. Knows neither models nor wires.
"""

import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from nbgen.engine_state import EngineStatus, LoadProgress

#: The time between two looks at a thread that sends nothing.
LOOK_SECONDS = 5.0
#: The least CPU time that a thread uses between two looks while it computes; a waiting thread uses less.
USED_SECONDS = 0.01
#: A GPU computation that lasts longer is taken as hung: the thread that waits for it uses CPU time all the while, so
#: only this limit shows it. A CPU computation may last as long as a request may run: after that nobody waits for it.
LONGEST = 300.0
#: An admission that lasts longer is taken as endless: a chat template may loop. A large context's text takes seconds.
ADMISSION_SECONDS = 30.0
#: The same with media: the decoder has to start, and may then take its time for each of them.
MEDIA_SECONDS = 300.0

#: The time between two signs of a process that serves modules.
SIGN_SECONDS = 5.0

Given = TypeVar("Given")
Made = TypeVar("Made")


class Pulse:
    """Watches the thread that enters it, until that leaves it; if `whole`, all threads of the process."""

    def __init__(
        self,
        send: Callable[[EngineStatus | LoadProgress], None],
        device: str = "cpu",
        run_seconds: float | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Any thread may call `send`; `device` is the kind of device that computes; a request may run `run_seconds`."""
        self._send = send
        self._longest = max(LONGEST, run_seconds or math.inf) if device == "cpu" else LONGEST
        self._whole = whole
        self._status: EngineStatus | LoadProgress = EngineStatus()
        self._said = time.monotonic()
        #: By thread: the time by which its `bounded` work must be done.
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
        """Send the status as it is now."""
        self._status, self._said = status, time.monotonic()
        if not self._overdue:
            self._send(status)

    def bounded(self, work: Callable[[Given], Made], seconds: float) -> Callable[[Given], Made]:
        """`work` with a time limit, since others wait for it. If it takes longer, the pulse stops until it is done."""

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


def tell_of_life(send: Callable[[EngineStatus], None]) -> None:
    """Send a sign again and again, from a thread of its own, whatever the others do."""

    def run() -> None:
        while True:
            send(EngineStatus())
            time.sleep(SIGN_SECONDS)

    threading.Thread(target=run, name="sign-of-life", daemon=True).start()


def _processor_clock() -> Callable[[], float]:
    """A clock of this thread's CPU time that other threads can read; of the process's where the system has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
