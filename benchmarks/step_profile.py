"""Where the time of nbgen's steps goes: linear layers, attention, the model's other code, sampling, bookkeeping.

Timers around the parts of a real run rather than torch's profiler, whose own cost per operator is as large as a small
model's operators. Layers in C++ time themselves, in a library that is built for it. Runs in a process of its own:
`python -m benchmarks.step_profile FOLDER THREADS WORKLOAD...`.
"""

import ctypes
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measured_process import environment
from benchmarks.workloads import WORKLOADS

PARTS = ("linear layers", "attention", "other model code", "sampling", "bookkeeping")
#: What the C++ times of them, in its order.
NATIVE_PARTS = PARTS[:2]


class Timers:
    """Seconds and calls of each part, gathered while it runs."""

    def __init__(self, library: ctypes.CDLL | None) -> None:
        """Of what a `library` of layers says, too, which is built to do so."""
        self.seconds: dict[str, float] = defaultdict(float)
        self._take = getattr(library, "take_part_seconds", lambda _: None)

    def clear(self) -> None:
        self._take_native()
        self.seconds.clear()

    def taken(self) -> dict[str, float]:
        """Seconds of each part since they were cleared."""
        for part, seconds in zip(NATIVE_PARTS, self._take_native(), strict=True):
            self.seconds[part] += seconds
        return self.seconds

    def _take_native(self) -> list[float]:
        found = (ctypes.c_double * len(NATIVE_PARTS))()
        self._take(found)
        return list(found)

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started

        return timed

    def wrap(self, part: str, owner: Any, name: str) -> None:
        """Time a method of one object."""
        setattr(owner, name, self.around(part, getattr(owner, name)))


def table(folder: Path, threads: int, *workloads: str) -> str:
    """Of all workloads, unless some are named."""
    command = [sys.executable, "-m", "benchmarks.step_profile", str(folder), str(threads), *(workloads or WORKLOADS)]
    return subprocess.run(command, env=environment(threads), stdout=subprocess.PIPE, text=True, check=True).stdout


def main(folder: Path, threads: int, *workloads: str) -> None:
    from benchmarks.engines import nbgen_engine
    from nbgen.engine_config import EngineConfig

    config = EngineConfig(model=str(folder), threads=threads, draft_tokens=0)
    nbgen_engine.import_parts(config)
    from nbgen.engine import native
    from nbgen.engine.assembly import assemble

    native.KINDS = {dtype: (*flags, "-DTIMED") for dtype, flags in native.KINDS.items()}
    assembly = assemble(config, lambda *_: None)
    timers = _timed(assembly.engine, native.library(assembly.engine._runner.model.dtype))
    print("| | steps | ms a step | " + " | ".join(PARTS) + " |")
    print("|---" * (3 + len(PARTS)) + "|")
    for workload in (WORKLOADS[name] for name in workloads):
        for seed in range(2):  # the first warms up
            prompts = workload.prompts(assembly.model.vocab_size, seed)
            timers.clear()
            steps, started = assembly.engine.steps, time.perf_counter()
            nbgen_engine.generate(assembly, prompts, workload.new, workload.top_p)
            total = time.perf_counter() - started
        print(_row(workload.title, assembly.engine.steps - steps, total, timers.taken()))


def _timed(engine: Any, library: ctypes.CDLL | None) -> Timers:
    """Put timers around the parts of an engine; those in C++ are in its `library`."""
    timers, runner = Timers(library), engine._runner
    timers.wrap("model", runner, "run")
    timers.wrap("sampling", engine._launcher._sampler, "sample")
    timers.wrap("attention", runner.attention, "attend")
    for module in runner.model.modules():
        if "Linear" in type(module).__name__:
            timers.wrap("linear layers", module, "forward")
    return timers


def _row(title: str, steps: int, total: float, seconds: dict[str, float]) -> str:
    inside = seconds["linear layers"] + seconds["attention"]
    parts = dict(seconds)
    parts["other model code"] = seconds["model"] - inside
    parts["bookkeeping"] = total - seconds["model"] - seconds["sampling"]
    cells = [
        f"{1000 * parts.get(part, 0.0) / steps:.3f} ms ({100 * parts.get(part, 0.0) / total:.0f}%)" for part in PARTS
    ]
    return f"| {title} | {steps} | {1000 * total / steps:.3f} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
