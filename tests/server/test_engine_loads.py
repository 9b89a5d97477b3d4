"""Loads by the engine's client: of several models at once, of changed files, rounded, and those that fail."""

import asyncio
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbgen.commands import ReleaseMemory, ResumeMemory
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError, Unavailable
from nbgen.server import restarts
from nbgen.server.engine_client import EngineClient
from nbgen.server.restarts import Restarts
from tests.server.conftest import PATIENCE, until
from tests.server.test_engine_client import Heard, long_request


@pytest.mark.soak
async def test_of_two_loads_at_once_the_one_that_is_replaced_says_so(long_model: Path, tiny_model: Path) -> None:
    client, heard = EngineClient(EngineConfig(model="bundled"), logging.getLogger("test")), Heard()
    try:
        await client.start()
        client.submit(long_request("r"), heard)
        names = [str(long_model), str(tiny_model), str(long_model) + "/."]
        results = await asyncio.gather(*(client.load(name) for name in names), return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            assert (result is None) == (name == client.model.name), result
            assert result is None or isinstance(result, Unavailable)
        assert heard.error is not None
        assert heard.error.message in [f"another model was loaded meanwhile: {name!r}" for name in names]
    finally:
        await client.close(0)


async def test_a_model_is_loaded_anew_for_another_rounding_or_changed_files_alone_and_not_while_the_server_stops(
    tiny_model: Path, tmp_path: Path
) -> None:
    """It is rounded as the server was told, unless a load says otherwise."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = EngineConfig(model=str(folder), quantization="int8")
    client, heard = EngineClient(config, logging.getLogger("test")), Heard()
    pids: list[int | None] = [None]
    try:
        for model, asked, found, anew in (
            ("bundled", "none", None, True),
            (None, None, None, False),
            (str(folder), None, "int8", True),
            (None, None, "int8", False),
            (None, "int4", "int4", True),
        ):
            await client.load(model, asked)
            assert client.model is not None
            assert client.model.quantization == found, (model, asked)
            assert (client.pid != pids[-1]) == anew, (model, asked)
            pids.append(client.pid)
        assert client.loadable == [str(folder), "bundled"]
        changed = folder / "generation_config.json"
        changed.write_text(changed.read_text() + " ")
        await client.load()
        assert client.pid not in pids
        pid = client.pid
        await client.load()
        assert client.pid == pid
        client.submit(long_request("r"), heard)
        closing = asyncio.create_task(client.close(PATIENCE))
        await until(lambda: client.closed)
        with pytest.raises(Unavailable, match="the server is stopping"):
            await client.load("bundled")
        assert (heard.error, client.state, client.pid) == (None, "ready", pid)
        client.forget("r")
        await closing
    finally:
        await client.close(0)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_configured_model_that_is_not_there_is_a_failure_and_a_slip_of_the_pen_is_none(announced: bool) -> None:
    client = EngineClient(EngineConfig(model="/nonexistent/model"), logging.getLogger("test"))
    if announced:
        client.will_start()
    assert client.healthy != announced
    with pytest.raises(ModelError, match="no folder"):
        await client.load("/nonexistent/other")
    assert client.healthy != announced
    with pytest.raises(ModelError, match="no folder"):
        await client.load()
    assert (client.state, client.healthy) == ("failed", False)
    client.submit(long_request("r"), heard := Heard())
    await until(lambda: heard.error)
    assert isinstance(heard.error, ModelError)
    assert "the model '/nonexistent/model' cannot be loaded: there is no folder" in heard.error.message
    await client.close(0)


async def test_a_request_that_comes_as_a_load_fails_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that could not load is still there then."""
    monkeypatch.setattr(Restarts, "paused", False)
    client = EngineClient(EngineConfig(model="/nonexistent/model"), logging.getLogger("test"))
    heard: list[Heard] = []

    def ask() -> None:
        if client.state == "failed" and len(heard) < 3:
            heard.append(Heard())
            client.submit(long_request(str(len(heard))), heard[-1])

    client.watchers.add(ask)
    with pytest.raises(ModelError):
        await client.start()
    assert client.pid is not None
    await until(lambda: len(heard) == 3 and all(each.error for each in heard))
    await client.close(0)
    assert client.pid is None


async def test_between_loads_that_fail_is_a_pause_as_long_as_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: clock.now))
    client = EngineClient(EngineConfig(model="/nonexistent/model"), logging.getLogger("test"))
    begun = client._restarts.begun
    monkeypatch.setattr(client._restarts, "begun", lambda: (begun(), setattr(clock, "now", clock.now + 30)))
    with pytest.raises(ModelError):
        await client.start()
    clock.now += 29
    pid = client.pid
    with pytest.raises(ModelError, match="no folder"):
        client.submit(long_request("soon"), Heard())
    assert (client.state, client.pid) == ("failed", pid)
    clock.now += 1
    client.submit(long_request("later"), heard := Heard())
    await until(lambda: heard.error)
    await client.close(0)


async def test_a_stop_that_comes_while_a_load_ends_the_present_model_is_the_last_word(tiny_model: Path) -> None:
    client = EngineClient(EngineConfig(model="bundled"), logging.getLogger("test"))
    try:
        await client.start()
        loading = asyncio.create_task(client.load(str(tiny_model)))
        await until(lambda: client.state == "stopping")
        await client.stop()
        with pytest.raises(Unavailable, match="was stopped"):
            await loading
        assert (client.state, client.pid) == ("stopped", None)
    finally:
        await client.close(0)


@pytest.mark.parametrize("second", ["cache", "load", "adapter"])
async def test_who_wants_the_cache_while_the_weights_come_back_gets_it_or_is_told_why_not(
    second: str, tiny_model: Path
) -> None:
    client = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test"))
    try:
        await client.start()
        pid = client.pid
        await client.change_memory(ReleaseMemory, ["kv_cache", "weights"])
        weights = asyncio.create_task(client.change_memory(ResumeMemory, ["weights"]))
        await until(lambda: client.state == "loading")
        if second == "adapter":
            with pytest.raises(Unavailable, match="memory is released"):
                await client.load_adapter("a", "/nonexistent")
        else:
            await (client.load() if second == "load" else client.change_memory(ResumeMemory, ["kv_cache"]))
        await weights
        assert (client.state, client.pid) == ("released" if second == "adapter" else "ready", pid)
    finally:
        await client.close(0)
