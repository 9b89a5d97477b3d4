"""An answer that is written while the notebook goes on."""

import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

from jupyter_client.manager import KernelManager

from nbgen.notebook.background import BackgroundRun
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream
from tests.conftest import PATIENCE


async def events() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    yield "delta", {"text": "a"}
    yield "done", {"finish_reason": {"type": "stop"}, "usage": {}}


def test_a_run_that_draws_its_end_can_be_cancelled_as_any_other() -> None:
    ending, go_on = threading.Event(), threading.Event()

    def ended(*_: Any) -> None:
        ending.set()
        go_on.wait()

    run = BackgroundRun(TextStream(iter(()), Result(), None, events()), lambda *_: None, ended)
    assert ending.wait(PATIENCE)
    run.cancel()
    go_on.set()
    assert run.wait().finish_reason == "stop"


SILENT = """
import asyncio, threading
from nbgen.notebook.background import BackgroundRun
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream

async def events():
    await asyncio.Event().wait()
    yield "delta", {"text": "a"}

answer = TextStream(iter(()), Result(), None, events())
"""


def test_who_stops_the_cell_that_awaits_it_is_heard() -> None:
    """Also where nothing comes: a loop that waits for a socket is not woken by a signal."""
    kernel = KernelManager(kernel_name="python3")
    kernel.start_kernel()
    client = kernel.client()
    client.start_channels()

    def interrupt(message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_input":  # it begins
            threading.Timer(1, kernel.provisioner.process.send_signal, [signal.SIGINT]).start()

    try:
        client.wait_for_ready(timeout=PATIENCE)
        for awaited in ("BackgroundRun(answer, print, print)", "answer"):
            client.execute_interactive(SILENT, timeout=PATIENCE)
            reply = client.execute_interactive(f"await {awaited}", timeout=PATIENCE, output_hook=interrupt)
            assert reply["content"]["ename"] in ("CancelledError", "KeyboardInterrupt"), awaited
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
