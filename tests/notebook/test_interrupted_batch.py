"""Ctrl-C while many rows are asked: what came of them is told when nothing more can come."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nbgen.notebook.batch import Batch
from nbgen.notebook.result import Result

SOME = 1000


class Slow:
    """A client whose rows take long to be cancelled."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.closed = 0

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        yield

    async def arun(self, body: dict[str, Any]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.asked.set()
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
        client.asked.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    rows = [(number, Result(prompt="a")) for number in range(3)]
    batch = Batch(client, 2, {})  # type: ignore[arg-type]
    assert not batch.run(rows, lambda number: None, lambda: None)
    assert client.closed == 2
    assert [result.finish_reason for _, result in rows] == ["abort", "abort", None]
    assert batch.results == batch.errors == {}


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupt_while_its_thread_starts_leaves_nothing_running(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, start = Slow(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if begun:
            start(thread)
            client.asked.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert not Batch(client, 2, {}).run([(0, Result(prompt="a"))], lambda number: None, lambda: None)  # type: ignore[arg-type]
    assert client.closed == begun
