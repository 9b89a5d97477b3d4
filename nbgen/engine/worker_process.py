"""A process for work that a hostile input can make endless or huge: started when first needed, killed when it overruns.

Does not know the work: the module that the process runs decides what it does with a message (`worker_channel`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from nbgen.engine.worker_channel import Pipes
from nbgen.errors import Unavailable

START_SECONDS = 60.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

#: Signals caused by a process's own faults. All others come from outside, such as from Linux when memory is short.
FAULTS = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSEGV}
#: A share of the time limit. A process with less CPU time than this was held up: the machine is busy, or was suspended.
LEAST_SHARE = 0.5

T = TypeVar("T")


class Halted(Unavailable):
    """Something outside ended the process or held it up; the work that it was given is not the cause."""


class Started(msgspec.Struct):
    """The first frame from a worker: it is ready for work."""


class WorkerProcess:
    """Runs `python -m MODULE ARGUMENT…`; only one thread may use it at a time. A lost process is started again."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        safe = ["-P"] if sys.flags.safe_path else []  # find modules as this process does
        self._command = [sys.executable, *safe, "-m", module, *arguments]
        self._environment = {**ENVIRONMENT, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False

    def start(self) -> None:
        """Start the process, unless it runs, so that it imports its modules. Raises Unavailable if it cannot start."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | self._environment
                )
            except OSError as error:  # too many files or processes: the request is not the cause
                raise Unavailable(f"a process that this needs cannot be started: {error.strerror}") from None
            self._end = weakref.finalize(self, _end, self._process)

    @property
    def begun(self) -> bool:
        """Whether it is ready for work."""
        return self._begun and self._process is not None and self._process.poll() is None

    def begin(self, message: object = None) -> None:
        """Start it and wait until it is ready for work. Some workers need a `message` for that. Raises Unavailable."""
        self.start()
        try:
            self.ask(message, Started, START_SECONDS)
        except (TimeoutError, EOFError):
            raise Unavailable("a process that this needs does not start; the server's log says why") from None
        self._begun = True

    def ask(self, message: object, kind: type[T], seconds: float) -> T:
        """Its answer. Raises TimeoutError after `seconds`, EOFError if the process ends; in either case it is gone.

        Raises Halted if the work is not the cause of that. All waiting here ends when the process ends, so a timer that
        kills it is enough.
        """
        if self._process is None:
            raise EOFError
        clock = _Clock(self._process, seconds)
        try:
            if message is not None:
                self._pipes.send(message)
            return self._pipes.receive(kind)
        except (EOFError, OSError):
            raise clock.judged(self.kill()) from None
        except (ValueError, msgspec.MsgspecError):
            self.kill()
            raise EOFError from None
        except BaseException:  # MemoryError, too: the unread rest of this answer would be taken for the next one
            self.kill()
            raise
        finally:
            clock.cancel()

    def kill(self) -> int | None:
        """Kill the process; returns its exit status, as `subprocess` gives it."""
        if self._process is None:
            return None
        ended = self._end()
        self._process, self._begun = None, False
        return ended

    def interrupt(self) -> None:
        """Kill the process that another thread waits for in `ask`."""
        if (process := self._process) is not None:
            process.kill()

    @property
    def _pipes(self) -> Pipes:
        assert self._process is not None
        return _pipes(self._process)


def _pipes(process: subprocess.Popen[bytes]) -> Pipes:
    assert process.stdin is not None
    assert process.stdout is not None
    return Pipes(process.stdout, process.stdin)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill a process. Also runs when its owner is garbage, before the process's own objects are collected."""
    process.kill()  # changes nothing if it has ended by itself
    ended = process.wait()
    _pipes(process).close()
    return ended


class _Clock(threading.Timer):
    """Kills a process that does not answer in time, and tells what caused its end."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        super().__init__(seconds, self._kill)
        self._process, self._seconds, self._began = process, seconds, _cpu_seconds(process.pid)
        self._late = self._idle = False
        self.start()

    def judged(self, ended: int | None) -> Exception:
        """The exception for a process that ended with this status."""
        if self._idle:
            return Halted(
                f"a process that this needs computed for less than half of the {self._seconds:g} s that it had: the "
                "machine is busy, or was suspended; ask again"
            )
        if self._late:
            return TimeoutError()
        if ended is not None and ended < 0 and ended not in FAULTS:
            return Halted(
                f"a process that this needs was ended from outside (signal {-ended}), perhaps for want of memory: free "
                "some, or ask again"
            )
        return EOFError()

    def _kill(self) -> None:
        now = _cpu_seconds(self._process.pid)
        if now is not None and self._began is not None:
            self._idle = now - self._began < LEAST_SHARE * self._seconds
        self._late = True
        self._process.kill()


def _cpu_seconds(pid: int) -> float | None:
    """The CPU seconds that a process has used; None if the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
