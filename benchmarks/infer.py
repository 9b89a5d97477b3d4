"""`python -m benchmarks.infer [ROW ...]`: KServe v2 inference beside a bare Tornado handler that only echoes.

Requests a second of `simple`, and MB a second of FP32 tensors of 1 and 50 MB, as binary data and as JSON, there and
back; and where the time of a request goes, as the server's own statistics and the processes' clocks tell it. The client
is a process of its own and sends the same bytes to both. Writes INFER.md from infer.json, which keeps each row's last
figures; compare ratios, not absolute numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import psutil

from benchmarks.machine import describe

FIGURES, REPORT = Path(__file__).parent / "infer.json", Path(__file__).parent / "INFER.md"
#: Of the server's statistics: `success` is from the parsed request to its answer's tensors.
PARTS = ("success", "queue", "compute_input", "compute_infer", "compute_output")
Clocks = tuple[float, float]
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
REPORT_TEXT = """# What an inference costs

`python -m benchmarks.infer` writes this file: the same bytes sent to nbgen and to a bare Tornado handler that sends
back what it got, which is the limit of any server on Tornado. Medians of three turns of at least a second each, after
one that does not count. MB/s counts the request alone; the answer is as long. **Compare ratios**, absolute numbers move
with the machine and its other work.

{machine}. Taken with
{commands}

| request | MB sent | nbgen, 1/s | bare echo, 1/s | nbgen, MB/s | ratio |
| --- | --- | --- | --- | --- | --- |
{rates}

Where the time of one request goes, in milliseconds. HTTP is all before the request is parsed and after its answer's
tensors are there: reading, parsing, writing, the client. The channel is the way between the server and the process that
runs modules. CPU is both processes' own clocks for each request.

| request | in all | HTTP and JSON | channel | queue | module | server's CPU | modules' CPU |
| --- | --- | --- | --- | --- | --- | --- | --- |
{parts}

A small request costs the server what any Tornado handler costs, and about half as much again for reading JSON, checking
tensors and crossing to the other process and back. Binary tensors are passed on in pieces, never joined in the server.
JSON costs what its numbers cost: about 60 ns each to read (msgspec's decoder 25, the check of types 17, numpy 17) and
30 to 55 to write (orjson), in a worker thread, slice by slice, so that nobody else waits.
"""
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

    model: str
    body: bytes
    headers: dict[str, str]
    callers: int = 1


def simple(callers: int) -> Load:
    numbers = list(range(16))
    inputs = [{"name": n, "shape": [1, 16], "datatype": "INT32", "data": numbers} for n in ("INPUT0", "INPUT1")]
    return Load("simple", json.dumps({"inputs": inputs}).encode(), {}, callers)


def tensors(megabytes: int, *, binary: bool) -> Load:
    """`megabytes` of FP32. As JSON they are halves, so that 50 MB of them fit into the most JSON that is read."""
    array = np.random.default_rng(0).standard_normal(megabytes * 250_000).astype(np.float32)
    item: dict = {"name": "X", "shape": [len(array)], "datatype": "FP32"}
    if not binary:
        item["data"] = (np.round(array * 2) / 2).tolist()
        return Load("echo", json.dumps({"inputs": [item]}, separators=(",", ":")).encode(), {})
    item["parameters"] = {"binary_data_size": array.nbytes}
    head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
    return Load("echo", head + array.tobytes(), {"Inference-Header-Content-Length": str(len(head))})


ROWS: dict[str, Callable[[], Load]] = {
    "simple, 1 caller": partial(simple, 1),
    "simple, 16 callers": partial(simple, 16),
    "1 MB binary": partial(tensors, 1, binary=True),
    "1 MB JSON": partial(tensors, 1, binary=False),
    "50 MB binary": partial(tensors, 50, binary=True),
    "50 MB JSON": partial(tensors, 50, binary=False),
}


class Served:
    """A server process, nbgen or the bare one, and its address."""

    def __init__(self, command: list[str], port: int, prefix: str) -> None:
        self.url = f"http://127.0.0.1:{port}{prefix}"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}v2/health/live")
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise SystemExit("a server did not start")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    wanted = parser.parse_args().rows or list(ROWS)
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    command = " ".join(["python -m benchmarks.infer", *(f"'{name}'" for name in parser.parse_args().rows)])
    with tempfile.TemporaryDirectory() as folder:
        ours = start_nbgen(Path(folder), 18431)
        bare = Served([sys.executable, "-c", BARE.replace("PORT", "18432")], 18432, "/")
        try:
            for name in wanted:
                found[name] = {**row(ROWS[name](), ours, bare), "command": command, "machine": describe()}
                print(name, found[name], flush=True)
                FIGURES.write_text(json.dumps(found, indent=1) + "\n")
        finally:
            ours.close()
            bare.close()
    REPORT.write_text(render({name: found[name] for name in ROWS if name in found}))


def row(load: Load, ours: Served, bare: Served) -> dict[str, float]:
    """Medians of both in turn, after one that does not count; and the parts of nbgen's requests."""
    pairs, parts = [], []
    for _ in range(REPETITIONS + 1):
        before, clocks = counted(ours, load.model), cpu_seconds(ours)
        mine = asyncio.run(measure(ours, load))
        parts.append(spent(before, counted(ours, load.model), clocks, cpu_seconds(ours)))
        pairs.append((mine, asyncio.run(measure(bare, load))))
    mine, limit = (statistics.median(pair[index] for pair in pairs[1:]) for index in (0, 1))
    medians = {name: statistics.median(part[name] for part in parts[1:]) for name in parts[0]}
    return {"mb": len(load.body) / 1e6, "nbgen": mine, "bare": limit, "callers": load.callers, **medians}


def counted(served: Served, model: str) -> dict[str, float]:
    """The server's own count of requests, and the seconds of their parts."""
    found = httpx.get(f"{served.url}v2/models/{model}/stats").json()["model_stats"][0]["inference_stats"]
    return {"requests": found["success"]["count"], **{name: found[name]["ns"] / 1e9 for name in PARTS}}


def cpu_seconds(served: Served) -> tuple[float, float]:
    """Of the server's process, and of those below it."""
    process = psutil.Process(served.process.pid)
    clocks = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    seconds = [clock.user + clock.system for clock in clocks]
    return seconds[0], sum(seconds[1:])


def spent(before: dict[str, float], after: dict[str, float], clocks: Clocks, later: Clocks) -> dict[str, float]:
    """Milliseconds of each part, for each request."""
    requests = max(1, after["requests"] - before["requests"])
    of_parts = {name: (after[name] - before[name]) * 1000 / requests for name in PARTS}
    of_clocks = {name: (later[i] - clocks[i]) * 1000 / requests for i, name in enumerate(("server", "modules"))}
    return of_parts | of_clocks


def render(found: dict[str, dict]) -> str:
    """The report."""
    last = list(found.values())[-1]
    commands = "\n".join(dict.fromkeys(f"`{figures['command']}`" for figures in found.values()))
    rates = "\n".join(
        f"| {name} | {figures['mb']:.3g} | {figures['nbgen']:.3g} | {figures['bare']:.3g} "
        f"| {figures['nbgen'] * figures['mb']:.3g} | {figures['nbgen'] / figures['bare']:.2f} |"
        for name, figures in found.items()
    )
    return REPORT_TEXT.format(
        machine=last["machine"], commands=commands, rates=rates, parts="\n".join(map(parts_of, found, found.values()))
    )


def parts_of(name: str, figures: dict) -> str:
    """A row of where the time goes. What is left of a caller's time is HTTP, there and back."""
    whole = figures["callers"] / figures["nbgen"] * 1000
    inside = figures["queue"] + sum(figures[part] for part in PARTS if part.startswith("compute"))
    queue, success = figures["queue"], figures["success"]
    cells = [whole, whole - success, success - inside, queue, inside - queue]
    return f"| {name} | " + " | ".join(f"{cell:.3g}" for cell in (*cells, figures["server"], figures["modules"])) + " |"


if __name__ == "__main__":
    main()
