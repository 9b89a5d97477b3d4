"""A process for work that a hostile input can make endless or huge: started when first needed, killed when it overruns.

Knows no work: its module says what it does with what comes (`worker_channel`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from nbgen.engine.worker_channel import Pipes
from nbgen.errors import Unavailable

START_SECONDS = 60.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

T = TypeVar("T")


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

    def __del__(self) -> None:
        self.kill()

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

    @property
    def begun(self) -> bool:
        """Whether it takes work already."""
        return self._begun and self._process is not None and self._process.poll() is None

    def begin(self, message: object = None) -> None:
        """Wait until it takes work, which it does after `message` where it needs one. Raises Unavailable."""
        self.start()
        try:
            self._exchange(message, Started, START_SECONDS)
        except (TimeoutError, EOFError):
            raise Unavailable("a process that this needs does not start; the server's log says why") from None
        self._begun = True

    def ask(self, message: object, kind: type[T], seconds: float) -> T:
        """Its answer, once begun. Raises TimeoutError after `seconds`, EOFError where it ends: then it is gone."""
        return self._exchange(message, kind, seconds)

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipes.close()
            self._process, self._begun = None, False

    def interrupt(self) -> None:
        """End what another thread waits for."""
        if (process := self._process) is not None:
            process.kill()

    @property
    def _pipes(self) -> Pipes:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return Pipes(self._process.stdout, self._process.stdin)

    def _exchange(self, message: object, kind: type[T], seconds: float) -> T:
        """Whatever waits here for the process goes on at its end, so that a clock that kills it is enough."""
        if self._process is None:
            raise EOFError
        late, process = threading.Event(), self._process

        def overrun() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(seconds, overrun)
        clock.start()
        try:
            if message is not None:
                self._pipes.send(message)
            return self._pipes.receive(kind)
        except (EOFError, OSError, ValueError, msgspec.MsgspecError):
            self.kill()
            if late.is_set():
                raise TimeoutError from None
            raise EOFError from None
        finally:
            clock.cancel()
