"""A measured process with its children: their CPU time and memory, and a signal to all of them."""

import signal
import subprocess

import psutil


class ProcessTree:
    """The tree under one process that we started."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process
        self._root = psutil.Process(process.pid)

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

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            for process in self._all():
                process.send_signal(number)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
