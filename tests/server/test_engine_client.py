"""The engine's client in this process: what needs a clock of its own."""

import asyncio
import logging
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

import nbgen
from nbgen.commands import ReleaseMemory
from nbgen.engine_config import EngineConfig
from nbgen.errors import EngineStopped, InternalError, InvalidRequest, NbgenError, Unavailable
from nbgen.messages import GenerateOutput, GenerateRequest, Media
from nbgen.sampling_params import SamplingParams
from nbgen.server import engine_life, restarts, silence
from nbgen.server.engine_client import EngineClient
from nbgen.server.engine_process import _PRIVATE, EngineProcess
from nbgen.server.question import ask
from nbgen.server.runs import Run, Runs
from nbgen.tokenizer_messages import TokenizeRequest
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


async def stop(process: psutil.Process) -> None:
    """All its threads stand still: until one of them takes the signal, the others go on."""
    process.send_signal(signal.SIGSTOP)
    await until(lambda: process.status() == psutil.STATUS_STOPPED)


async def test_an_engine_that_stands_still_is_killed_while_it_is_awaited_and_at_the_end(
    long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EngineClient(EngineConfig(model=str(long_model), dtype="float32"), logging.getLogger("test"))
    try:
        await client.start()
        first, heard = client.pid, Heard()
        client.submit(long_request("r"), heard)
        await until(lambda: heard.outputs)
        await stop(psutil.Process(first))
        with monkeypatch.context() as patch:
            patch.setattr(silence, "SILENT_SECONDS", 1)
            commands = client.change_memory(ReleaseMemory, ["kv_cache"]), client.load_adapter("a", "/nonexistent")
            async with asyncio.timeout(PATIENCE):
                ends = await asyncio.gather(*commands, return_exceptions=True)
            await until(lambda: heard.error)
        assert [type(end) for end in (heard.error, *ends)] == [EngineStopped] * 3
        assert heard.error is not None
        assert "did not answer" in heard.error.message
        await client.start()
        assert client.pid != first
        monkeypatch.setattr(engine_life, "CLOSE_PATIENCE", 0.2)
        second = psutil.Process(client.pid)
        await stop(second)
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
        await stop(first)
        monkeypatch.setattr(silence, "LOADING_SECONDS", 1)
        await until(lambda: heard.error)
        monkeypatch.undo()
        assert isinstance(heard.error, EngineStopped)
        assert "did not answer for 1 seconds" in heard.error.message
        assert not first.is_running()
        assert client.state in ("starting", "loading"), "another takes its place"
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


async def test_what_keeps_the_engine_down_holds_nothing_of_those_who_hear_it() -> None:
    client = EngineClient(EngineConfig(), logging.getLogger("test"))
    for _ in range(restarts.MAX_RESTARTS + 1):
        client._restarts.crashed()
    client.state, client.error = "failed", Unavailable("it stays down")
    for _ in range(2):
        with pytest.raises(Unavailable, match="it stays down"):
            client.submit(long_request("a"), Heard())
    assert client.error.__traceback__ is None
    client = EngineClient(EngineConfig(model="/nonexistent"), logging.getLogger("test"))
    asking = asyncio.create_task(ask(client, TokenizeRequest(rid="q")))
    await asyncio.sleep(0)
    client._give_up(kept := InternalError("it cannot be loaded"))
    with pytest.raises(InternalError, match="it cannot be loaded"):
        await asking
    assert kept.__traceback__ is None
    await client.close(0)


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


async def test_a_load_that_is_at_fault_or_refused_leaves_an_engine_alone_that_a_request_has_started(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test"))
    client.will_start()
    client.abandon(RuntimeError("before it had begun"))
    assert client.state == "failed"
    client.submit(GenerateRequest(rid="r", text="a", params=SamplingParams(max_new_tokens=1)), heard := Heard())
    client.abandon(RuntimeError("of the load at the server's start"))
    await until(lambda: heard.outputs or heard.error)
    assert (heard.error, client.state) == (None, "ready")
    monkeypatch.setattr(nbgen, "__version__", "0.0.1")
    with pytest.raises(Unavailable, match="was replaced by"):
        await client.load(quantization="int8")
    assert client.state == "ready", "the model that runs is not given up for it"
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
