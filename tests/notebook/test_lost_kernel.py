"""A kernel that is gone: what it alone could read is not written on, what another one finds again is."""

import subprocess
import sys

import pytest

from nbgen.errors import NotFound
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for
from tests.soak import soaking

CONNECT = "import sys, nbgen; nbgen.connect(*sys.argv[1:])"
BUSY = "max_new_tokens=15_000, ignore_eos=True"
#: What a page asks for that reaches the kernel alone.
PAGE = """
body = {"id": "asked-" + chat.chat, "chat": chat.chat, "messages": [{"role": "user", "content": "x"}]}
chat._receive({"type": "start", "body": {**body, "params": dict(chat.params)}})
print(body["id"], flush=True)
"""
PYTHON = "chat.ask('x'); print(chat._newest(), flush=True)"
GRID = """
import itertools, threading
threading.Thread(target=grid.wait, daemon=True).start()
print(next(turn["run"] for _ in itertools.count() for turn in grid._turns() if "run" in turn), flush=True)
"""


def has_begun(server: PrivateServer, run: str) -> bool:
    try:
        return server.client.snapshot(run)["seq"] > 0
    except NotFound:  # it is on its way
        return False


def run_of_a_lost_kernel(server: PrivateServer, *lines: str) -> str:
    """A run that a process has begun which was killed when the first of the answer was there."""
    code = "\n".join([CONNECT, *lines, "sys.stdin.read()"])
    command = [sys.executable, "-c", code, server.url, server.client.token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        try:
            run = kernel.stdout.readline().strip()
            assert run, "it began none"
            wait_for(lambda: has_begun(server, run), "the answer begins")
        finally:
            kernel.kill()
    return run


@pytest.mark.parametrize(
    "lines",
    [
        (f"chat = nbgen.Chat({BUSY})", PAGE),
        soaking((f"chat = nbgen.Chat('plans', {BUSY}); chat.chat = 'after_new_chat'", PAGE)),
        (f"chat = nbgen.Stream('x', {BUSY})", PAGE),
        (f"chat = nbgen.Chat(transport='comm', {BUSY})", PYTHON),
        (f"grid = nbgen.compare('x', temperature=[0, 1], transport='comm', {BUSY})", GRID),
    ],
)
def test_what_it_alone_could_read_ends_with_it(connected: PrivateServer, lines: tuple[str, ...]) -> None:
    run = run_of_a_lost_kernel(connected, *lines)
    ended = wait_for(lambda: (s := connected.client.snapshot(run))["state"] == "done" and s, "the run ended")
    assert ended["finish_reason"]["type"] == "abort"
    wait_for(lambda: not connected.client.model()["status"]["running"], "nothing runs")


@pytest.mark.parametrize(
    "lines",
    [
        (f"chat = nbgen.Chat('plans', {BUSY})", PAGE),
        soaking((f"chat = nbgen.Chat('plans', transport='comm', {BUSY})", PYTHON)),
        (f"chat = nbgen.Chat({BUSY})", PYTHON),
    ],
)
def test_what_another_kernel_or_a_page_finds_again_goes_on(connected: PrivateServer, lines: tuple[str, ...]) -> None:
    run = run_of_a_lost_kernel(connected, *lines)
    before = connected.client.snapshot(run)["seq"]
    wait_for(lambda: connected.client.snapshot(run)["seq"] > before, "the run goes on")
    connected.client.cancel(run)
    wait_for(lambda: connected.client.snapshot(run)["state"] == "done", "the run ended")
