"""A measured server: started, asked to stream by as many clients as wanted, paused in between."""

import random
import socket
import statistics
import time
from pathlib import Path

from benchmarks import http_stream
from benchmarks.http_stream import Arrivals
from benchmarks.measured_process import MeasuredProcess, MeasurementFailed
from benchmarks.servers import Service

PROMPT_TOKENS = NEW_TOKENS = 128
START_SECONDS = 180


class Server:
    """One running server with its model loaded."""

    def __init__(self, service: Service, folder: Path, threads: int) -> None:
        """Raises MeasurementFailed if no answer comes."""
        self.name = service.name
        self._port = _free_port()
        self._body = {"model": str(folder), "temperature": 0, **service.extras}
        command = [service.peer.python, *service.command(folder, self._port, threads)]
        self._process = MeasuredProcess(command, threads, service.variables(threads))
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self._process.pause()

    def measure(self, streams: int, seed: int) -> dict[str, float]:
        """One request from each of `streams` clients at once: rates, times to and between tokens, CPU by process."""
        self._process.resume()
        before, started = self._process.cpu_seconds(), time.perf_counter()
        arrivals = self._complete(streams, NEW_TOKENS, seed)
        seconds = time.perf_counter() - started
        server, engine = (after - earlier for after, earlier in zip(self._process.cpu_seconds(), before, strict=True))
        self._process.pause()
        return {
            "seconds": seconds,
            "tokens": streams * NEW_TOKENS,
            "cpu_seconds": server + engine,
            "server_cpu_seconds": server,
            "engine_cpu_seconds": engine,
            **_percentiles("first_token", [a.first_token_seconds for a in arrivals]),
            **_percentiles("gap", [gap for a in arrivals for gap in a.gaps]),
        }

    def close(self) -> None:
        self._process.close()

    def _complete(self, streams: int, new: int, seed: int) -> list[Arrivals]:
        chance = random.Random(f"{streams} {seed}")
        prompts = [http_stream.prompt(PROMPT_TOKENS, chance) for _ in range(streams)]
        try:
            return http_stream.complete(self._port, [{**self._body, "prompt": p, "max_tokens": new} for p in prompts])
        except http_stream.StreamFailed as error:
            raise MeasurementFailed(f"{self.name}: {error}") from None

    def _wait(self) -> None:
        """Until it completes a prompt."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._complete(1, 2, 0)
                return
            except MeasurementFailed:
                if not self._process.runs:
                    raise MeasurementFailed(f"{self.name}: {self._process.last_words()}") from None
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    if len(values) == 1:
        return {f"{name}_p50": values[0], f"{name}_p99": values[0]}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"{name}_p50": cuts[49], f"{name}_p99": cuts[98]}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
