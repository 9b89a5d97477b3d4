"""The engine's client in this process: what needs a clock of its own."""

import asyncio
import logging
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

import nbgen
from nbgen.commands import ReleaseMemory
from nbgen.engine_config import EngineConfig
from nbgen.errors import EngineStopped, InternalError, InvalidRequest, ModelError, NbgenError, Unavailable
from nbgen.messages import GenerateOutput, GenerateRequest, Media
from nbgen.sampling_params import SamplingParams
from nbgen.server import engine_life, restarts, silence, standby
from nbgen.server.engine_client import EngineClient
from nbgen.server.engine_process import _PRIVATE, EngineProcess
from nbgen.server.restarts import Restarts
from nbgen.server.runs import Run, Runs
from tests.server.conftest import PATIENCE, until


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.outputs: list[GenerateOutput] = []
        self.error: NbgenError | None = None

    def add(self, *outputs: GenerateOutput) -> None:
        self.outputs += outputs

    def fail(self, error: NbgenError) -> None:
        self.error = error


def long_request(rid: str) -> GenerateRequest:
    return GenerateRequest(rid=rid, text="a", params=SamplingParams(max_new_tokens=15_000, ignore_eos=True))


async def test_an_engine_that_stands_still_is_killed_while_it_is_awaited_and_at_the_end(
    long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EngineClient(EngineConfig(model=str(long_model), dtype="float32"), logging.getLogger("test"))
    try:
        await client.start()
        first, heard = client.pid, Heard()
        client.submit(long_request("r"), heard)
        await until(lambda: heard.outputs)
        psutil.Process(first).send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(silence, "SILENT_SECONDS", 1)
            await until(lambda: heard.error)
        assert isinstance(heard.error, EngineStopped)
        assert "did not answer" in heard.error.message
        await client.start()
        assert client.pid != first
        monkeypatch.setattr(engine_life, "CLOSE_PATIENCE", 0.2)
        second = psutil.Process(client.pid)
        second.send_signal(signal.SIGSTOP)
    finally:
        await asyncio.wait_for(client.close(0), PATIENCE)
    assert client.pid is None
    assert not second.is_running()
    with pytest.raises(Unavailable, match="stopping"):
        client.submit(long_request("late"), Heard())


async def test_an_engine_that_stands_still_while_it_loads_is_killed_too(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test"))
    heard = Heard()
    try:
        client.submit(long_request("r"), heard)
        await until(lambda: client.pid)
        first = psutil.Process(client.pid)
        first.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(silence, "LOADING_SECONDS", 1)
        await until(lambda: heard.error)
        monkeypatch.undo()
        assert isinstance(heard.error, EngineStopped)
        assert "did not answer for 1 seconds" in heard.error.message
        assert not first.is_running()
        assert client.state in ("starting", "loading"), "another takes its place"
    finally:
        await client.close(0)


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


async def test_a_model_whose_files_have_changed_is_loaded_anew(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    client = EngineClient(EngineConfig(model=str(folder)), logging.getLogger("test"))
    try:
        await client.load()
        first = client.pid
        await client.load()
        assert client.pid == first
        changed = folder / "generation_config.json"
        changed.write_text(changed.read_text() + " ")
        await client.load()
        second = client.pid
        assert second != first
        await client.load()
        assert client.pid == second
    finally:
        await client.close(0)


async def test_a_model_is_rounded_as_the_server_was_told_unless_a_load_says_otherwise(tiny_model: Path) -> None:
    config = EngineConfig(model=str(tiny_model), quantization="int8")
    client = EngineClient(config, logging.getLogger("test"))
    try:
        for model, asked, found in (
            ("bundled", "none", None),
            (None, None, None),
            (str(tiny_model), None, "int8"),
            (None, "int4", "int4"),
        ):
            await client.load(model, asked)
            assert client.model is not None
            assert client.model.quantization == found, (model, asked)
        assert client.loadable == [str(tiny_model), "bundled"]
    finally:
        await client.close(0)


@pytest.mark.parametrize("turns", range(1, 7))
async def test_a_live_model_is_unloaded_however_early_in_its_connection(turns: int, tmp_path: Path) -> None:
    async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(ends, tmp_path / "engine"):
        client = EngineClient(EngineConfig(model="live"), logging.getLogger("test"), attach=str(tmp_path / "engine"))
        starting = asyncio.create_task(client.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(client.stop(), PATIENCE)
        assert (client.state, client._process) == ("stopped", None)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


@asynccontextmanager
async def stopping(client: EngineClient) -> AsyncIterator[None]:
    """While it is stopped, which is over in the end."""
    await client.start()
    stop = asyncio.create_task(client.stop())
    await asyncio.sleep(0)
    assert client.state == "stopping"
    yield
    await stop


async def test_who_asks_while_it_is_stopped_has_it_started_again_unless_it_is_stopped_once_more(
    tiny_model: Path,
) -> None:
    client = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test"))
    async with stopping(client):
        with pytest.raises(InvalidRequest, match="no such folder"):
            await client.load_adapter("a", "/nonexistent")
        assert client.state == "ready"
    async with stopping(client):
        await client.start()
        assert client.state == "ready"
    async with stopping(client):
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0)
        await client.stop()
        with pytest.raises(Unavailable, match="was stopped"):
            await starting
        assert client.state == "stopped"
    async with stopping(client):
        await client.change_memory(ReleaseMemory, ["kv_cache"])
        assert (client.state, client.pid) == ("stopped", None), "what a stop gives back is free once that is answered"
    await client.close(0)


async def test_no_engine_is_started_of_a_version_that_the_server_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    client, heard = EngineClient(EngineConfig(), logging.getLogger("test")), Heard()
    monkeypatch.setattr(nbgen, "__version__", "0.0.1")
    client.submit(long_request("r"), heard)
    await until(lambda: heard.error)
    assert isinstance(heard.error, Unavailable)
    assert re.search(r"nbgen 0\.0\.1 was replaced by .* restart the server", heard.error.message)
    monkeypatch.undo()
    await client.start()
    monkeypatch.setattr(nbgen, "__version__", "0.0.1")
    with pytest.raises(Unavailable, match="was replaced by"):
        await client.load(quantization="int8")
    assert client.state == "ready", "the model that runs is not given up for it"
    await client.close(0)


async def test_a_request_aborted_while_the_engine_starts_ends_at_once() -> None:
    client = EngineClient(EngineConfig(model="/nonexistent"), logging.getLogger("test"))
    runs = Runs(client, lambda: None)
    run = Run(GenerateRequest(rid="r", text="a", params=SamplingParams(n=2)))
    runs.start(run)
    assert runs.state(run) == "loading"
    runs.abort("r")
    assert [sample.finish_reason.message for sample in run.samples] == ["Abort in waiting queue"] * 2
    assert len(runs) == 0
    await client.close(0)


async def test_closing_waits_for_nobody_who_waits_for_a_model() -> None:
    client, heard = EngineClient(EngineConfig(model="bundled"), logging.getLogger("test")), Heard()
    client.submit(long_request("r"), heard)
    await until(lambda: client.pid)
    await asyncio.wait_for(client.close(10 * PATIENCE), PATIENCE)
    assert heard.error is not None
    assert heard.error.message == "the server is stopping"
    assert client.state == "stopped"


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


async def test_what_keeps_the_engine_down_holds_nothing_of_those_who_hear_it() -> None:
    client = EngineClient(EngineConfig(), logging.getLogger("test"))
    for _ in range(restarts.MAX_RESTARTS + 1):
        client._restarts.crashed()
    client.state, client.error = "failed", Unavailable("it stays down")
    for _ in range(2):
        with pytest.raises(Unavailable, match="it stays down"):
            client.submit(long_request("a"), Heard())
    assert client.error.__traceback__ is None


async def test_a_fault_of_the_client_itself_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(log: logging.Logger, **options: bool) -> EngineProcess:
        raise RuntimeError("secret words")

    monkeypatch.setattr(EngineProcess, "spawn", fault)
    client, heard = EngineClient(EngineConfig(), logging.getLogger("test")), Heard()
    client.submit(long_request("r"), heard)
    await until(lambda: heard.error)
    assert isinstance(heard.error, InternalError)
    assert "secret" not in heard.error.message
    assert client.state == "failed"


async def test_a_fault_of_a_load_leaves_an_engine_alone_that_a_request_has_started(tiny_model: Path) -> None:
    client = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test"))
    client.will_start()
    client.abandon(RuntimeError("before it had begun"))
    assert client.state == "failed"
    client.submit(GenerateRequest(rid="r", text="a", params=SamplingParams(max_new_tokens=1)), heard := Heard())
    client.abandon(RuntimeError("of the load at the server's start"))
    await until(lambda: heard.outputs or heard.error)
    assert (heard.error, client.state) == (None, "ready")
    await client.close(0)


async def test_a_fault_of_a_life_leaves_nobody_waiting_though_the_next_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned: asyncio.Future[EngineProcess] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(EngineProcess, "spawn", lambda log, **options: spawned)
    client, heard = EngineClient(EngineConfig(), logging.getLogger("test")), Heard()
    client.submit(long_request("r"), heard)
    await asyncio.sleep(0)
    before: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    before.set_exception(RuntimeError("of a life before it"))
    client._life_ended(before)  # type: ignore[arg-type]
    assert isinstance(heard.error, InternalError)
    spawned.set_exception(Unavailable("nobody waits any more"))
    await until(lambda: client._life is None or client._life.done())


async def test_the_engine_writes_no_paths_or_addresses_to_clients() -> None:
    line = "OSError: /home/x/model.bin at 0x7f3a is not 'C:\\\\Users\\\\x' there"
    assert not any(part in _PRIVATE.sub("…", line) for part in ("home", "7f3a", "Users"))


async def test_who_leaves_a_run_that_has_ended_leaves_the_next_of_its_id_alone() -> None:
    client = EngineClient(EngineConfig(model="bundled"), logging.getLogger("test"))
    runs = Runs(client, lambda: None)
    request = GenerateRequest(rid="r", text="a")
    runs.start(present := Run(request))
    runs.leave(Run(request))
    assert present.ended is None
    runs.leave(present)
    assert present.ended is not None
    await client.close(0)


async def test_media_for_a_model_of_text_alone_are_left_out_or_refused() -> None:
    client = EngineClient(EngineConfig(model="bundled"), logging.getLogger("test"))
    optional = GenerateRequest(
        rid="left out",
        text="a",
        media=[Media(type="image")],
        media_optional=True,
        params=SamplingParams(max_new_tokens=1),
    )
    required = msgspec.structs.replace(optional, rid="refused", media_optional=False)
    try:
        early, late = Heard(), Heard()
        client.submit(required, early)
        client.submit(optional, late)
        await until(lambda: early.error and late.outputs)
        assert isinstance(early.error, InvalidRequest)
        assert "takes no image: only text" in early.error.message
        with pytest.raises(InvalidRequest, match="takes no image"):
            client.submit(required, early)
        assert late.error is None
    finally:
        await client.close(0)
