"""The process that stands by: it takes over after a crash, unless it died or could not be made."""

import logging
from pathlib import Path

import psutil
import pytest

from nbgen.engine_config import EngineConfig
from nbgen.server import engine_child, standby
from nbgen.server.engine_client import EngineClient
from nbgen.server.engine_process import EngineProcess
from tests.server.conftest import until
from tests.server.test_engine_client import Heard, long_request


async def test_after_a_crash_the_process_that_stood_by_takes_over_unless_it_died(
    long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "LATER_SECONDS", 0.0)
    config = EngineConfig(model=str(long_model), dtype="float32")
    client = EngineClient(config, logging.getLogger("test"), standby=True)
    try:
        await client.start()
        await until(lambda: client._standby.pid)
        first, waiting = client.pid, client._standby.pid
        psutil.Process(first).kill()
        await until(lambda: client.pid not in (first, None))
        await client.start()
        assert client.pid == waiting
        heard = Heard()
        client.submit(long_request("r"), heard)
        await until(lambda: heard.outputs)
        await until(lambda: client._standby.pid)
        dead = psutil.Process(client._standby.pid)
        dead.kill()
        await until(lambda: dead.status() == psutil.STATUS_ZOMBIE)
        psutil.Process(waiting).kill()
        await until(lambda: client.pid not in (waiting, None))
        await client.start()
        assert client.pid != dead.pid
        await until(lambda: client._standby.pid)
        last = psutil.Process(client._standby.pid)
    finally:
        await client.close(0)
    assert client._standby.pid is None
    assert not last.is_running(), "stopping ends the one that stands by, too"


async def test_a_standby_that_could_not_be_made_is_made_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []
    spawn = EngineProcess.spawn

    async def fails(log: logging.Logger, *, gently: bool = False) -> EngineProcess:
        tries.append(gently)
        if len(tries) < 3:
            raise (OSError(11, "no process can be had"), RuntimeError("can't start new thread"))[len(tries) - 1]
        return await spawn(log, gently=gently)

    monkeypatch.setattr(standby, "LATER_SECONDS", 0.0)
    monkeypatch.setattr(EngineProcess, "spawn", fails)
    waiting = standby.Standby(logging.getLogger("test"), wanted=True)
    for number in range(1, 4):
        waiting.prepare()
        await until(lambda number=number: len(tries) == number and waiting._making is None)
    assert waiting.pid
    await waiting.close()


async def test_the_first_load_takes_the_process_that_was_begun_before_the_server_unless_it_died(
    long_model: Path,
) -> None:
    client = EngineClient(EngineConfig(model=str(long_model), dtype="float32"), logging.getLogger("test"))
    try:
        engine_child.begin_early()
        early = engine_child._early[0].process.pid
        await client.start()
        assert client.pid == early
        assert engine_child.early() is None, "it is given once"
        await client.stop()
        engine_child.begin_early()
        dead = psutil.Process(engine_child._early[0].process.pid)
        dead.kill()
        await client.start()
        assert client.pid not in (None, dead.pid)
    finally:
        await client.close(0)
