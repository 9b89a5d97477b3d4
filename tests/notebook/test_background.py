"""An answer that is written while the notebook goes on."""

import threading
from collections.abc import AsyncIterator
from typing import Any

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
