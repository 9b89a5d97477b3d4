"""What a child says, line by line, and what it leaves."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from nbgen.server import engine_child, engine_process
from nbgen.server.engine_process import EngineProcess
from tests.conftest import PATIENCE

#: A pipe's 65,536 bytes end within a letter.
LINE = "x" + "é" * 2000
WORDS = f"import sys; sys.stdout.buffer.write(({LINE!r} + chr(10)).encode() * 100 + b'half \\xc3')"


async def test_characters_are_whole_wherever_the_pipe_cuts_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_child, "COMMAND", ("-X", "utf8", "-c", WORDS))
    monkeypatch.setattr(engine_process, "GROUP_SECONDS", PATIENCE)
    with caplog.at_level(logging.INFO, "test"):
        process = await EngineProcess.spawn(logging.getLogger("test"))
        assert await process.end(PATIENCE) == "exit code 0"
    assert [record.args for record in caplog.records] == [(LINE,)] * 100 + [("half \ufffd",)]


async def test_words_of_an_error_have_no_colours_where_a_kernel_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(engine_child, "COMMAND", ("-c", "raise ValueError('too much')"))
    process = await EngineProcess.spawn(logging.getLogger("test"))
    assert await process.end(PATIENCE) == "exit code 1"
    assert process.last_words() == "ValueError: too much"


async def test_what_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: pair)

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(OSError, match="Too many"):
        await EngineProcess.spawn(logging.getLogger("test"))
    assert [end.fileno() for end in pair] == [-1, -1]


#: Leaves what the pipe is open for behind, in a session of its own.
LEAVES = """
import os, subprocess
print(subprocess.Popen(["sleep", "60"], start_new_session=True).pid, flush=True)
os._exit(3)
"""


async def test_what_a_child_left_elsewhere_keeps_nobody_waiting_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_child, "COMMAND", ("-c", LEAVES))
    process = await EngineProcess.spawn(logging.getLogger("test"))
    async with asyncio.timeout(PATIENCE / 3):
        assert await process.end(PATIENCE) == "exit code 3"
    os.kill(int(process.last_words()), signal.SIGKILL)


#: Run as the first process of a container: an engine whose workers outlive it, and which processes are left in the end.
FIRST = """
import asyncio, logging, os, sys
from nbgen.server import engine_child, engine_process

START = "import subprocess, time; [subprocess.Popen(['sleep', '60']) for _ in range(3)]; print('begun'); time.sleep(60)"

async def main():
    engine_child.COMMAND, engine_process.GROUP_SECONDS = ("-c", START), 60.0
    process = await engine_process.EngineProcess.spawn(logging.getLogger("test"))
    while not process.last_words():
        await asyncio.sleep(0.01)
    os.kill(process.pid, 9)
    await process.end(5.0)
    print(*(entry for entry in os.listdir("/proc") if entry.isdigit()))

asyncio.run(main())
"""


def test_in_a_container_nothing_of_an_engine_is_left_as_a_zombie() -> None:
    container = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        subprocess.run([*container, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no container can be made here")
    done = subprocess.run([*container, sys.executable, "-c", FIRST], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1"]
