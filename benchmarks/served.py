"""nbgen as a client meets it: `python -m nbgen` in a process of its own, driven over HTTP with streaming.

The client reads bytes and counts tokens, so that its own work stays small beside the server's on the same cores.
"""

import asyncio
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil

from benchmarks.workload import NEW_TOKENS, Measurement, prompts

START_SECONDS = 120
TOKENS = re.compile(rb'"output_ids":\[([0-9,]*)\]')


class Served:
    """A running server with its model loaded."""

    name = "nbgen, served"

    def __init__(self, model: str) -> None:
        self._token = secrets.token_hex(16)
        self._port = _free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbgen", f"--model={model}", f"--port={self._port}", "--allow-root"],
            env={**os.environ, "JUPYTER_TOKEN": self._token},
            stderr=subprocess.DEVNULL,
        )
        self.model = self._load()

    def measure(self, streams: int, repetition: int) -> Measurement:
        inputs = prompts(streams, self.model["vocab_size"], repetition)
        cpu, started = self._cpu_seconds(), time.perf_counter()
        firsts = asyncio.run(self._stream_all(inputs))
        seconds = time.perf_counter() - started
        first = sum(firsts) / streams
        return Measurement(streams, streams * NEW_TOKENS, seconds, first, self._cpu_seconds() - cpu)

    def forward_seconds(self) -> float:
        """Seconds the engine has spent in its model."""
        time.sleep(1.0)  # the engine tells it twice a second
        return self._get("api/v1/model")["status"]["forward_seconds"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    async def _stream_all(self, inputs: list[list[int]]) -> list[float]:
        return await asyncio.gather(*(self._stream(ids) for ids in inputs))

    async def _stream(self, ids: list[int]) -> float:
        """Seconds to the first token of one streamed request, read to its end."""
        body = json.dumps({"input_ids": ids, "stream": True, "sampling_params": _greedy()}).encode()
        head = (
            f"POST /generate HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        started, first, last = time.perf_counter(), None, b""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        writer.write(head.encode() + body)
        async for line in reader:
            if line.startswith(b"data: {"):
                first, last = first or time.perf_counter(), line
        writer.close()
        assert len(TOKENS.search(last)[1].split(b",")) == NEW_TOKENS, "the stream was cut"
        return first - started

    def _load(self) -> dict:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                answer = self._get("api/v1/model")
                if answer["state"] == "ready":
                    return answer["model"]
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise TimeoutError(f"the server was not ready after {START_SECONDS} s")

    def _get(self, path: str) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def _cpu_seconds(self) -> float:
        process = psutil.Process(self._process.pid)
        times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
        return sum(t.user + t.system for t in times)


def _greedy() -> dict:
    return {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
