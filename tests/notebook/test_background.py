"""An answer that is written while the notebook goes on."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nbgen.notebook.background import BackgroundRun
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream


async def events() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    yield "delta", {"text": "a"}
    yield "done", {"finish_reason": {"type": "stop"}, "usage": {}}


def test_a_run_that_draws_its_end_can_be_cancelled_as_any_other() -> None:
    ending, go_on = threading.Event(), threading.Event()

    def ended(*_: Any) -> None:
        ending.set()
        go_on.wait()

    run = BackgroundRun(TextStream(iter(()), Result(), None, events()), lambda *_: None, ended)
    assert ending.wait(30)
    run.cancel()
    go_on.set()
    assert run.wait().finish_reason == "stop"


async def endless() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    yield "delta", {"text": "a"}
    await asyncio.Event().wait()


def test_a_run_goes_on_where_waiting_for_it_is_interrupted() -> None:
    run = BackgroundRun(TextStream(iter(()), Result(), None, endless()), lambda *_: None, lambda *_: None)
    waits = threading.Event()

    def interrupt() -> None:
        waits.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def wait() -> Result:
        waits.set()
        return run.wait()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        wait()
    assert run.running
    run.cancel()
    assert wait().finish_reason == "abort"
