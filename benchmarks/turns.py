"""Engines and servers in turn: each row, each repetition, one after the other, all loaded, only one running.

A run during which others used the machine is taken again, a few times at most.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.engine import Engine
from benchmarks.machine import Neighbours
from benchmarks.measured_process import MeasurementFailed
from benchmarks.peers import MACHINE, OURS, PEERS, Peer
from benchmarks.results import Record
from benchmarks.server import Server
from benchmarks.servers import SERVICES
from benchmarks.workloads import FIRST_TOKEN, WORKLOADS, Workload

#: Resident memory after everything else, and after the first token.
MEMORY, MEMORY_LOADED = "memory", "memory-loaded"
#: Clients at once, of the served rows.
STREAMS = (1, 8, 32)
#: The share of the processors that others may take during a run that counts, and how often one is taken again.
FOREIGN_SHARE, RETRIES = 0.08, 2

Figures = dict[str, float]
Take = Callable[[Record], None]


class Turns:
    """The engines of one model, measured in turn; each figure goes to `take`."""

    def __init__(self, folder: Path, threads: int, names: list[str], take: Take) -> None:
        self._folder, self._threads, self._names, self._take = folder, threads, names, take
        self._seeds = count()  # new prompts for every run, so that no cache of an earlier one helps

    def starts(self, repetitions: int) -> None:
        """Cold starts: processes from nothing to their first token, from files that memory holds already."""
        for repetition in range(repetitions):
            for name in self._names:
                try:
                    self._record(FIRST_TOKEN.name, name, repetition, undisturbed(lambda n=name: self._start(n)))
                except MeasurementFailed as error:
                    print(error, flush=True)

    def workloads(self, workloads: list[Workload], repetitions: int, *, memory: bool, limits: bool) -> None:
        """Every workload, `repetitions` times after one run that does not count; memory before and after.

        With `limits` the machine's are measured in turn.
        """
        with self._engines(PEERS[n] for n in self._names) as engines, self._engines([MACHINE] * limits) as machine:
            if memory:
                self._memory(MEMORY_LOADED, engines)
            for workload in workloads:
                measured = [*machine, *engines]
                self._rounds(measured, workload.name, repetitions, lambda e, seed, w=workload: e.measure(w, seed))
            if memory and workloads:
                self._memory(MEMORY, engines)

    def streams(self, services: list[str], repetitions: int) -> None:
        """The servers, for each number of clients in `STREAMS`; beside one client, our engine without a server."""
        openers = [lambda n=n: Server(SERVICES[n], self._folder, self._threads) for n in services]
        with opened(openers) as servers, self._engines(PEERS[n] for n in self._names if n == OURS) as engines:
            for clients in STREAMS:
                asked = {Server: clients, Engine: WORKLOADS["single"]}
                measured = [*engines, *servers] if clients == 1 else servers
                call = lambda one, seed, asked=asked: one.measure(asked[type(one)], seed)  # noqa: E731
                self._rounds(measured, f"served-{clients}", repetitions, call)

    def _engines(self, peers: Iterable[Peer]) -> AbstractContextManager[list[Engine]]:
        return opened([lambda p=peer: Engine(p, self._folder, self._threads) for peer in peers])

    def _rounds(self, measured: list[Any], name: str, repetitions: int, call: Callable[[Any, int], Figures]) -> None:
        for repetition in range(repetitions + 1):
            for one in list(measured):
                try:
                    figures = undisturbed(lambda o=one: call(o, next(self._seeds)), RETRIES if repetition else 0)
                except MeasurementFailed as error:
                    print(error, flush=True)
                    measured.remove(one)
                    continue
                if repetition > 0:
                    self._record(name, one.name, repetition, figures)

    def _memory(self, name: str, engines: list[Engine]) -> None:
        for engine in engines:
            self._record(name, engine.name, 0, {"bytes": engine.resident_bytes()})

    def _start(self, name: str) -> Figures:
        engine = Engine(PEERS[name], self._folder, self._threads)
        engine.close()
        return {"seconds": engine.start_seconds, "cpu_seconds": engine.start_cpu_seconds}

    def _record(self, workload: str, engine: str, turn: int, figures: Figures) -> None:
        self._take({"workload": workload, "engine": engine, "turn": turn, **figures})


def undisturbed(measure: Callable[[], Figures], retries: int = RETRIES) -> Figures:
    """The figures of the run that others disturbed least: the first that is good enough."""
    best: Figures = {}
    for _ in range(1 + retries):
        neighbours = Neighbours()
        figures = measure()
        figures["foreign"] = round(neighbours.share(figures["cpu_seconds"]), 3)
        if not best or figures["foreign"] < best["foreign"]:
            best = figures
        if best["foreign"] <= FOREIGN_SHARE:
            break
    return best


@contextmanager
def opened(openers: list[Callable[[], Any]]) -> Iterator[list[Any]]:
    """All that can be started, closed at the end whatever happens."""
    started: list[Any] = []
    try:
        for opener in openers:
            try:
                started.append(opener())
            except MeasurementFailed as error:
                print(error, flush=True)
        yield list(started)
    finally:
        for one in started:
            one.close()
