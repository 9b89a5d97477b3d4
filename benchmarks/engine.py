"""A measured engine from outside: its process, its seconds, its memory. The inside is `benchmarks.child`."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.peers import Peer
from benchmarks.process_tree import ProcessTree
from benchmarks.workloads import Workload

ROOT = Path(__file__).parent.parent


class EngineFailed(Exception):
    """The process ended, or could not do what was asked; its last words."""


class Engine:
    """One running engine with its model loaded, paused except while it is measured."""

    def __init__(self, peer: Peer, folder: Path, threads: int) -> None:
        """`start_seconds` is from the process's start to its first token. Raises EngineFailed."""
        self.name = peer.name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [peer.python, "-m", f"benchmarks.engines.{peer.module}", folder, str(threads), *peer.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(threads),
        )
        self.tree = ProcessTree(self._process)
        try:
            self._answer()
        except BaseException:
            self.tree.kill()
            raise
        self.start_seconds = time.perf_counter() - started
        self.start_cpu_seconds = sum(self.tree.cpu_seconds())
        self.tree.pause()

    def measure(self, workload: Workload, seed: int) -> dict[str, float]:
        """Wall and CPU seconds of one run. Raises EngineFailed."""
        self.tree.resume()
        cpu = sum(self.tree.cpu_seconds())
        self._process.stdin.write(json.dumps([workload.name, seed]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        answer["cpu_seconds"] = sum(self.tree.cpu_seconds()) - cpu
        self.tree.pause()
        return answer

    def close(self) -> None:
        self.tree.kill()

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
            raise EngineFailed(f"{self.name}: {said[-1] if said else 'ended without a word'}")
        return json.loads(line)


def environment(threads: int) -> dict[str, str]:
    """What a measured process runs under: this package in its path, nothing from the net, threads that sleep soon."""
    fixed = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    return {"GOMP_SPINCOUNT": "10000"} | os.environ | fixed
