"""Ctrl-C while many rows are asked: what came of them is told when nothing more can come."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import nbgen
from nbgen.notebook import session
from nbgen.notebook.batch import Batch
from nbgen.notebook.result import Result

SOME = 1000


class Slow:
    """A client whose rows take long to be cancelled."""

    def __init__(self) -> None:
        self.asked, self.both_asked = threading.Event(), threading.Event()
        self.connected = threading.Event()
        self.closed = self.connections = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        self.connections += 1
        self.connected.set()
        try:
            yield
        finally:
            self.connections -= 1

    async def arun(self, body: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        (self.both_asked if self.asked.is_set() else self.asked).set()
        try:
            await asyncio.Event().wait()
            yield "done", {}
        finally:
            for _ in range(SOME):
                await asyncio.sleep(0)
            self.closed += 1


def test_an_interrupted_batch_ends_when_its_rows_have() -> None:
    client = Slow()

    def interrupt() -> None:
        client.both_asked.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    rows = [(number, Result(prompt="a")) for number in range(3)]
    batch = Batch(client, 2, {})  # type: ignore[arg-type]
    assert not batch.run(rows, lambda number: None, lambda: None)
    assert client.closed == 2
    assert [result.finish_reason for _, result in rows] == ["abort", "abort", None]
    assert batch.answered == batch.failed == 0


def test_an_interrupt_while_a_row_is_written_keeps_those_that_ended() -> None:
    class Quick(Slow):
        async def arun(self, body: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
            yield "done", {"finish_reason": {"type": "stop"}, "usage": {}}
            self.asked.set()

    client = Quick()

    def written() -> Iterator[tuple[int, Result]]:
        yield 0, Result(prompt="a")
        client.asked.wait()
        raise KeyboardInterrupt

    batch = Batch(client, 2, {})  # type: ignore[arg-type]
    assert not batch.run(written(), lambda number: None, lambda: None)
    assert (batch.answered, client.connections) == (1, 0)


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_its_thread_starts_leaves_nothing_running(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, start = Slow(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if begun:
            start(thread)
            client.connected.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert not Batch(client, 2, {}).run([(0, Result(prompt="a"))], lambda number: None, lambda: None)  # type: ignore[arg-type]
    assert (client.connected.is_set(), client.connections, client.asked.is_set()) == (begun, 0, False)


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@dataclass
class Word:
    """One whose making is interrupted."""

    word: str

    def __post_init__(self) -> None:
        interrupt()


@pytest.mark.parametrize("all_answered", [True, False])
def test_what_has_been_answered_stays_where_another_interrupt_follows(
    monkeypatch: pytest.MonkeyPatch, all_answered: bool
) -> None:
    class Twice(Slow):
        lost = False

        def hello(self) -> dict[str, Any]:
            return {"model": {"name": "m"}}

        async def arun(self, body: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
            if all_answered or "first" in str(body["messages"]):
                yield "delta", {"text": '{"word": "a"}'}
                yield "done", {"finish_reason": {"type": "stop"}, "usage": {}}
                return
            try:
                interrupt()
                await asyncio.Event().wait()
            finally:
                interrupt()
                await asyncio.sleep(0.1)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(session, "_client", Twice())
    answers = nbgen.map(["first", "second"], schema=Word, concurrency=1, progress=False)
    assert answers.word[0] == "a"
    assert (answers.finish_reason[1] == "stop") == all_answered
    assert signal.getsignal(signal.SIGINT) is before
