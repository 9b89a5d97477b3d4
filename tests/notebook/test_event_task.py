"""A stream that is left in the middle closes all that it has opened, and nobody hears of it."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from IPython.core.async_helpers import get_asyncio_loop
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from nbgen.errors import Unavailable
from nbgen.notebook.event_task import LEFT, EventTask
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream
from tests.conftest import wait_for
from tests.notebook.test_session import idle

LEAVE = """
import asyncio, nbgen

async def main():
    async for text in nbgen.stream("x", max_new_tokens=10_000, ignore_eos=True):
        break

asyncio.run(main())
"""

opened: list[str] = []


async def inner() -> AsyncGenerator[str]:
    opened.append("inner")
    try:
        yield "first"
        await asyncio.sleep(60)
    finally:
        opened.remove("inner")


async def outer() -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    opened.append("outer")
    try:
        async for name in inner():
            yield name, {}
    finally:
        opened.remove("outer")


def test_a_script_that_leaves_a_stream_says_nothing(server: PrivateServer) -> None:
    told = {**os.environ, "NBGEN_URL": server.url, "NBGEN_TOKEN": server.client.token}
    done = subprocess.run([sys.executable, "-c", LEAVE], check=False, capture_output=True, text=True, env=told)
    assert (done.returncode, done.stderr) == (0, "")


async def test_every_generator_is_closed_from_the_inside() -> None:
    events = EventTask(outer())
    assert await anext(events) == ("first", {})
    assert opened == ["outer", "inner"]
    events.stop()
    await events.ended()
    events.stop()
    assert opened == []
    assert await anext(events) == LEFT


async def test_what_breaks_it_is_raised_after_what_had_come() -> None:
    async def events() -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        yield "run", {}
        raise Unavailable("gone")

    task = EventTask(events())
    assert await anext(task) == ("run", {})
    with pytest.raises(Unavailable, match="gone"):
        await anext(task)


async def test_a_loop_that_is_left_ends_the_run(connected: PrivateServer) -> None:
    endless: dict[str, Any] = {"max_new_tokens": 10_000, "ignore_eos": True}
    async for _ in (answer := nbgen.stream("x", **endless)):
        break
    await asyncio.to_thread(idle)
    assert [text async for text in answer] == []
    assert (await answer).finish_reason == "abort"
    async with nbgen.stream("x", **endless) as answer:
        first = await anext(answer)
    await asyncio.to_thread(idle)
    assert (answer.result.text, answer.result.finish_reason) == (first, "abort")


def test_an_interrupt_in_a_terminal_ends_all_that_is_awaited(shell: InteractiveShell) -> None:
    shell.user_ns |= {"asyncio": asyncio, "stream": lambda: TextStream(iter(()), Result(), None, outer())}

    def interrupt(ready: Callable[[], bool]) -> None:
        wait_for(ready, "the cell waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    cells = ["await stream()", "async for _ in stream():\n    pass", "await asyncio.gather(stream(), stream())"]
    for count, cell in zip((1, 1, 2), cells, strict=True):
        all_read = lambda count=count: len(opened) == 2 * count  # noqa: E731
        (waiting := threading.Thread(target=interrupt, args=[all_read])).start()
        assert isinstance(shell.run_cell(cell).error_in_exec, asyncio.CancelledError)
        waiting.join()
        assert opened == []
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    shell.run_cell("left = asyncio.create_task(stream().read())\nawait asyncio.sleep(0)")
    shell.user_ns["begun"] = begun = threading.Event()
    threading.Thread(target=interrupt, args=[begun.is_set]).start()
    plain = shell.run_cell("import time\nbegun.set()\ntime.sleep(20)").error_in_exec
    assert isinstance(plain, KeyboardInterrupt), "its loop stands still, in which alone something waits"
    shell.run_cell("left.cancel()\nawait asyncio.wait([left])")
    assert opened == []
    get_asyncio_loop().close()


def test_so_does_a_plain_one(connected: PrivateServer) -> None:
    for _ in (answer := nbgen.stream("x", max_new_tokens=10_000, ignore_eos=True)):
        break
    idle()
    assert list(answer) == []
    assert answer.result.finish_reason == "abort"
