"""What a child says, line by line."""

import logging

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
