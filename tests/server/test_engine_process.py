"""What a child says, line by line."""

import logging
import socket
import subprocess

import pytest

from nbgen.server import engine_process
from nbgen.server.engine_process import EngineProcess
from tests.conftest import PATIENCE

#: A pipe's 65,536 bytes end within a letter.
LINE = "x" + "é" * 2000
WORDS = f"import sys; sys.stdout.buffer.write(({LINE!r} + chr(10)).encode() * 100 + b'half \\xc3')"


async def test_characters_are_whole_wherever_the_pipe_cuts_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_process, "COMMAND", ("-X", "utf8", "-c", WORDS))
    with caplog.at_level(logging.INFO, "test"):
        process = await EngineProcess.spawn(logging.getLogger("test"))
        assert await process.end(PATIENCE) == "exit code 0"
    assert [record.args for record in caplog.records] == [(LINE,)] * 100 + [("half \ufffd",)]


async def test_what_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = socket.socketpair()
    monkeypatch.setattr(socket, "socketpair", lambda: pair)

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(OSError, match="Too many"):
        await EngineProcess.spawn(logging.getLogger("test"))
    assert [end.fileno() for end in pair] == [-1, -1]
