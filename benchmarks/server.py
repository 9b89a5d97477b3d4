"""A measured server: started, asked to stream by as many clients as wanted, paused in between."""

import random
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import http_stream
from benchmarks.engine import EngineFailed, environment
from benchmarks.process_tree import ProcessTree
from benchmarks.servers import Service

PROMPT_TOKENS = NEW_TOKENS = 128
START_SECONDS = 180


class Server:
    """One running server with its model loaded."""

    def __init__(self, service: Service, folder: Path, threads: int) -> None:
        """Raises EngineFailed if no answer comes."""
        self.name = service.name
        self._port = _free_port()
        self._body = {"model": str(folder), "temperature": 0, **service.extras}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self._process = subprocess.Popen(
            [service.peer.python, *service.command(folder, self._port, threads)],
            stdout=self._log,
            stderr=self._log,
            env=environment(threads) | dict(service.environment),
        )
        self.tree = ProcessTree(self._process)
        try:
            self._wait()
        except BaseException:
            self.tree.kill()
            raise
        self.tree.pause()

    def measure(self, streams: int, seed: int) -> dict[str, float]:
        """One request from each of `streams` clients at once: rates, times to and between tokens, CPU by process."""
        self.tree.resume()
        bodies = self._bodies(streams, NEW_TOKENS, random.Random(f"{streams} {seed}"))
        before, started = self.tree.cpu_seconds(), time.perf_counter()
        try:
            arrivals = http_stream.complete(self._port, bodies)
        except http_stream.StreamFailed as error:
            raise EngineFailed(f"{self.name}: {error}") from None
        seconds = time.perf_counter() - started
        server, engine = (after - earlier for after, earlier in zip(self.tree.cpu_seconds(), before, strict=True))
        self.tree.pause()
        if min(len(a.events) for a in arrivals) < NEW_TOKENS // 2:
            raise EngineFailed(f"{self.name}: a stream was cut")
        firsts = [a.first_token_seconds for a in arrivals]
        gaps = [gap for a in arrivals for gap in a.gaps]
        return {
            "seconds": seconds,
            "tokens": streams * NEW_TOKENS,
            "cpu_seconds": server + engine,
            "server_cpu_seconds": server,
            "engine_cpu_seconds": engine,
            **_percentiles("first_token", firsts),
            **_percentiles("gap", gaps),
        }

    def close(self) -> None:
        self.tree.kill()

    def _bodies(self, streams: int, new: int, chance: random.Random) -> list[dict]:
        prompts = [http_stream.prompt(PROMPT_TOKENS, chance) for _ in range(streams)]
        return [{**self._body, "prompt": prompt, "max_tokens": new} for prompt in prompts]

    def _wait(self) -> None:
        said, deadline = "no answer", time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                http_stream.complete(self._port, self._bodies(1, 2, random.Random(0)))
                return
            except http_stream.StreamFailed as error:
                said = str(error)
            time.sleep(0.2)
        self._log.seek(0)
        raise EngineFailed(f"{self.name}: {said}; {self._log.read()[-500:]}")


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    if len(values) == 1:
        return {f"{name}_p50": values[0], f"{name}_p99": values[0]}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
