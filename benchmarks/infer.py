"""`python -m benchmarks.infer`: KServe v2 inference beside a bare Tornado handler that only echoes, which is the limit.

Requests a second of `simple`, and MB a second of FP32 tensors of 1 and 50 MB, as binary data and as JSON. The client
runs in a process of its own and sends the same bytes to both. Prints a table; compare ratios, not absolute numbers.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.machine import describe

REPETITIONS = 3
SECONDS = 1.0
#: Compressed tensors would be a measure of zlib, and the bare handler compresses nothing.
PLAIN = {"Accept-Encoding": "identity"}
SIMPLE = """
max_batch_size = 8
input = [{ name = "INPUT0", datatype = "INT32", dims = [16] }, { name = "INPUT1", datatype = "INT32", dims = [16] }]
output = [{ name = "OUTPUT0", datatype = "INT32", dims = [16] }, { name = "OUTPUT1", datatype = "INT32", dims = [16] }]
"""
SIMPLE_SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, INPUT0, INPUT1):
        return INPUT0 + INPUT1, INPUT0 - INPUT1
"""
ECHO = """
input = [{ name = "X", datatype = "FP32", dims = [-1] }]
output = [{ name = "Y", datatype = "FP32", dims = [-1] }]
"""
ECHO_SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, X):
        return X
"""
HEAD = "| request | MB sent | nbgen, 1/s | bare echo, 1/s | nbgen, MB/s | ratio |\n|---|---|---|---|---|---|"
BARE = """
import asyncio, tornado.web
class Echo(tornado.web.RequestHandler):
    def post(self):
        self.set_header("Content-Type", "application/octet-stream")
        self.finish(self.request.body)
    def get(self):
        self.finish(b"")
async def main():
    app = tornado.web.Application([(".*", Echo)])
    app.listen(PORT, "127.0.0.1", max_body_size=2**30, max_buffer_size=2**30)
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Load(NamedTuple):
    """One kind of request: its model, body and headers, and how many callers send it at once."""

    title: str
    model: str
    body: bytes
    headers: dict[str, str]
    callers: int = 1


def simple(callers: int) -> Load:
    numbers = list(range(16))
    inputs = [{"name": n, "shape": [1, 16], "datatype": "INT32", "data": numbers} for n in ("INPUT0", "INPUT1")]
    return Load(f"simple, {callers} callers", "simple", json.dumps({"inputs": inputs}).encode(), {}, callers)


def tensors(megabytes: int, *, binary: bool) -> Load:
    """`megabytes` of FP32; as JSON only the answer's text is of about four times that size."""
    array = np.random.default_rng(0).standard_normal(megabytes * 250_000).astype(np.float32)
    item: dict = {"name": "X", "shape": [len(array)], "datatype": "FP32"}
    if not binary:
        item["data"] = [round(float(value), 4) for value in array]
        title = f"{megabytes} MB of FP32 as JSON"
        return Load(title, "echo", json.dumps({"inputs": [item]}, separators=(",", ":")).encode(), {})
    item["parameters"] = {"binary_data_size": array.nbytes}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return Load(f"{megabytes} MB of FP32, binary", "echo", head + array.tobytes(), headers)


class Served:
    """A server process, nbgen or the bare one, and its address."""

    def __init__(self, command: list[str], port: int, prefix: str) -> None:
        self.url = f"http://127.0.0.1:{port}{prefix}"
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}v2/health/live")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise SystemExit("a server did not start")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def start_nbgen(folder: Path, port: int) -> Served:
    for name, config, source in (("simple", SIMPLE, SIMPLE_SOURCE), ("echo", ECHO, ECHO_SOURCE)):
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.toml").write_text(config)
        (version / "model.py").write_text(source)
    options = [f"--port={port}", f"--NbgenApp.model_repository={folder}", "--NbgenApp.autoload=False", "--no-browser"]
    options += ["--IdentityProvider.token=", "--allow-root", "--ServerApp.log_level=ERROR"]
    return Served([sys.executable, "-m", "nbgen", *options], port, "/nbgen/")


async def measure(served: Served, load: Load) -> float:
    """Requests a second."""
    url = f"{served.url}v2/models/{load.model}/infer"
    done = 0
    stop = time.monotonic() + SECONDS

    async def call(client: httpx.AsyncClient) -> None:
        nonlocal done
        while True:
            answer = await client.post(url, content=load.body, headers=PLAIN | load.headers)
            answer.raise_for_status()
            done += 1
            if time.monotonic() >= stop:
                return

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=64)) as client:
        started = time.monotonic()
        await asyncio.gather(*(call(client) for _ in range(load.callers)))
        return done / (time.monotonic() - started)


def main() -> None:
    loads = [simple(1), simple(16), tensors(1, binary=True), tensors(1, binary=False)]
    loads += [tensors(50, binary=True), tensors(10, binary=False)]
    with tempfile.TemporaryDirectory() as folder:
        ours = start_nbgen(Path(folder), 18431)
        bare = Served([sys.executable, "-c", BARE.replace("PORT", "18432")], 18432, "/")
        try:
            print(f"{describe()}\n\n{HEAD}")
            for load in loads:
                print(row(load, ours, bare), flush=True)
        finally:
            ours.close()
            bare.close()


def row(load: Load, ours: Served, bare: Served) -> str:
    """Medians of both in turn, after one that does not count."""
    pairs = [[asyncio.run(measure(served, load)) for served in (ours, bare)] for _ in range(REPETITIONS + 1)][1:]
    mine, limit = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
    size = len(load.body) / 1e6
    return f"| {load.title} | {size:.3f} | {mine:.1f} | {limit:.1f} | {mine * size:.0f} | {mine / limit:.2f} |"


if __name__ == "__main__":
    main()
