"""A process for work that a hostile input can make endless or huge: started when first needed, killed when it overruns.

Knows no work: its module says what it does with what comes (`worker_channel`).
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

#: Signals of a process's own faults; all others come from outside, as from Linux where memory is short.
FAULTS = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSEGV}
#: Of the time that it had: one that computed for less was kept from it, by a machine that is busy or was suspended.
LEAST_SHARE = 0.5

T = TypeVar("T")


class Halted(Unavailable):
    """Something else than its work ended the process or held it up: no fault of what it was asked."""


class Started(msgspec.Struct):
    """The first frame from a worker: it takes work from now on."""


class WorkerProcess:
    """`python -m MODULE ARGUMENT…`, one thread's at a time. It is started again after it was lost."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        safe = ["-P"] if sys.flags.safe_path else []  # as this process looks for modules
        self._command = [sys.executable, *safe, "-m", module, *arguments]
        self._environment = {**ENVIRONMENT, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = False

    def start(self) -> None:
        """Let the process import what it needs, unless it runs already. Raises Unavailable where there can be none."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | self._environment
                )
            except OSError as error:  # too many files or processes: no fault of what is asked
                raise Unavailable(f"a process that this needs cannot be started: {error.strerror}") from None
            self._end = weakref.finalize(self, _end, self._process)

    @property
    def begun(self) -> bool:
        """Whether it takes work already."""
        return self._begun and self._process is not None and self._process.poll() is None

    def begin(self, message: object = None) -> None:
        """Wait until it takes work, which it does after `message` where it needs one. Raises Unavailable."""
        self.start()
        try:
            self.ask(message, Started, START_SECONDS)
        except (TimeoutError, EOFError):
            raise Unavailable("a process that this needs does not start; the server's log says why") from None
        self._begun = True

    def ask(self, message: object, kind: type[T], seconds: float) -> T:
        """Its answer. Raises TimeoutError after `seconds`, EOFError where it ends: then it is gone.

        Raises Halted where neither is its own doing. Whatever waits here for the process goes on at its end, so that a
        clock that kills it is enough.
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
        except BaseException:  # want of memory, too: what is left of the answer would be the next one
            self.kill()
            raise
        finally:
            clock.cancel()

    def kill(self) -> int | None:
        """End the process, whatever it does; how it ended, as `subprocess` says it."""
        if self._process is None:
            return None
        ended = self._end()
        self._process, self._begun = None, False
        return ended

    def interrupt(self) -> None:
        """End what another thread waits for."""
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
    """Also for one whose owner is gone, before the garbage collector comes to the process's own objects."""
    process.kill()  # one that ends already does so as it would have
    ended = process.wait()
    _pipes(process).close()
    return ended


class _Clock(threading.Timer):
    """Kills a process that does not answer in time, and tells whose doing an end was."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        super().__init__(seconds, self._kill)
        self._process, self._seconds, self._began = process, seconds, _cpu_seconds(process.pid)
        self._late = self._idle = False
        self.start()

    def judged(self, ended: int | None) -> Exception:
        """What to raise for a process that ended so."""
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
    """What a process has computed so far; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
