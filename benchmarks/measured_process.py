"""A process that we start to measure: with its children, their CPU time, their memory, and a signal to all of them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
NOTHING: Mapping[str, str] = MappingProxyType({})


class MeasurementFailed(Exception):
    """The process ended, or could not do what was asked; its last words."""


class MeasuredProcess:
    """One that `answers` takes lines and gives lines; what any other prints goes to its log.

    It has a session of its own, as from a terminal of its own: Linux shares a processor out to sessions first, and a
    server in its client's session would wait for its turn behind that client.
    """

    def __init__(
        self, command: list[Any], threads: int, variables: Mapping[str, str] = NOTHING, *, answers: bool = False
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._log,
            stderr=self._log,
            text=True,
            env=environment(threads) | dict(variables),
            start_new_session=True,
        )
        self._root = psutil.Process(self._popen.pid)

    @property
    def runs(self) -> bool:
        return self._popen.poll() is None

    def ask(self, line: str) -> None:
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def answer(self) -> str:
        """The next line; empty if the process has ended."""
        return self._popen.stdout.readline()

    def last_words(self) -> str:
        """The last line of its log."""
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        return said[-1] if said else "ended without a word"

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the process itself, and of its children together, since they started."""
        times = [_cpu_seconds(process) for process in self._all()]
        return times[0], sum(times[1:])

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self._all())

    def pause(self) -> None:
        """Stop every thread, until `resume`, so that none takes part while another is measured."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._popen.communicate()
        self._log.close()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _signal(self, number: int) -> None:
        if self.runs:
            for process in self._all():
                process.send_signal(number)


def environment(threads: int) -> dict[str, str]:
    """What a measured process runs under: this package in its path, nothing from the net, threads that sleep soon."""
    fixed = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    return {"GOMP_SPINCOUNT": "10000"} | os.environ | fixed


def _cpu_seconds(process: psutil.Process) -> float:
    """On Linux by the process's own clock (clock_getcpuclockid); elsewhere in ticks, longer than a server's share."""
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | 2)
    times = process.cpu_times()
    return times.user + times.system
