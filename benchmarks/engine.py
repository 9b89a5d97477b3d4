"""A measured engine from outside: its seconds and what it holds. The inside is `benchmarks.child`."""

import json
import time
from pathlib import Path

from benchmarks.measured_process import MeasuredProcess, MeasurementFailed
from benchmarks.peers import Peer
from benchmarks.workloads import Workload


class Engine:
    """One running engine with its model loaded, paused except while it is measured."""

    def __init__(self, peer: Peer, folder: Path, threads: int) -> None:
        """`start_seconds` is from the process's start to its first token. Raises MeasurementFailed."""
        self.name, self._draws = peer.name, peer.draws
        module = f"benchmarks.engines.{peer.module}"
        started = time.perf_counter()
        command = [peer.python, "-m", module, folder, str(threads), *peer.options]
        self._process = MeasuredProcess(command, threads, answers=True)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.perf_counter() - started
        self.start_cpu_seconds = sum(self._process.cpu_seconds())
        self._process.pause()

    def measure(self, workload: Workload, seed: int) -> dict[str, float]:
        """Wall and CPU seconds of one run. Raises MeasurementFailed."""
        if workload.top_p is not None and not self._draws:
            raise MeasurementFailed(f"{self.name} takes the likeliest tokens only")
        self._process.resume()
        cpu = sum(self._process.cpu_seconds())
        self._process.ask(json.dumps([workload.name, seed]))
        answer = self._answer()
        answer["cpu_seconds"] = sum(self._process.cpu_seconds()) - cpu
        self._process.pause()
        return answer

    def resident_bytes(self) -> int:
        return self._process.resident_bytes()

    def close(self) -> None:
        self._process.close()

    def _answer(self) -> dict[str, float]:
        line = self._process.answer()
        if not line:
            raise MeasurementFailed(f"{self.name}: {self._process.last_words()}")
        return json.loads(line)
