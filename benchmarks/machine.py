"""The machine a figure was taken on, in a few words, and how much of it others took meanwhile."""

import os
import platform
import time
from pathlib import Path

import psutil


def describe() -> str:
    """Processor, cores, memory, Python and torch."""
    import torch
    import transformers

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB{gpu}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


class Neighbours:
    """The share of the machine's processors that other processes use, from now on."""

    def __init__(self) -> None:
        self._started, self._before = time.perf_counter(), _busy_seconds()

    def share(self, ours: float) -> float:
        """0 to 1. `ours` is the CPU seconds that the measured processes took since; the client's are known."""
        elapsed = time.perf_counter() - self._started
        others = _busy_seconds() - self._before - ours
        return max(0.0, others / elapsed / (os.cpu_count() or 1))


def _busy_seconds() -> float:
    """Of all processors since the machine started, without this process, which is the client."""
    times, own = psutil.cpu_times(), time.process_time()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0) - own


def _processor() -> str:
    """Its name, and which generation of that name it is of."""
    info = Path("/proc/cpuinfo")
    pairs = (line.partition(":") for line in (info.read_text().splitlines() if info.is_file() else ()))
    told = {name.strip(): value.strip() for name, _, value in pairs}
    if "model name" not in told:
        return platform.processor() or platform.machine()
    return f"{told['model name']} (family {told.get('cpu family')}, model {told.get('model')})"
