"""A server that nobody asks anything gives memory back, first the cache's and then all, and answers as before."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from nbgen.commands import ContinueGeneration, FlushCache, PauseGeneration, ReleaseMemory
from nbgen.engine_config import EngineConfig
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateOutput, GenerateRequest
from nbgen.sampling_params import SamplingParams
from nbgen.server import activity
from nbgen.server.engine_client import EngineClient
from nbgen.server.idle_unload import IdleUnload
from tests.conftest import save_model
from tests.server.conftest import BUSY, PATIENCE, Server, until, wait_for

GREEDY = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
MB = 2**20
#: Of tests whose server is to be asked again within these seconds, which a busy machine may let pass.
hurried = pytest.mark.flaky(reruns=2)
#: Of tests that share an engine's client.
together = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose cache can be seen in its memory: 16 kB a token."""
    folder = tmp_path_factory.mktemp("idle")
    sizes = {"hidden_size": 512, "num_key_value_heads": 4, "max_position_embeddings": 16_384}
    model = save_model(folder / "model", **sizes)
    options = ["--dtype=float32", "--NbgenApp.idle_release_seconds=1", "--NbgenApp.idle_unload_seconds=5"]
    server = Server(folder / "server", f"--model={model}", *options)
    try:
        yield server.ready()
    finally:
        server.stop()


def said(server: Server, body: dict = GREEDY) -> dict:
    answer = server.http.post("generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@hurried
def test_the_cache_leaves_memory_and_nobody_is_refused(server: Server) -> None:
    expected, engine = said(server)["text"], server.engine()

    def filled() -> int:
        said(server, GREEDY | {"text": None, "input_ids": [9] * 8000})
        full = engine.memory_info().rss
        return full if said(server)["meta_info"]["cached_tokens"] > 0 else 0

    full = wait_for(filled, "memory is looked at before the cache leaves it")
    wait_for(lambda: full - engine.memory_info().rss > 60 * MB, "8000 tokens of keys and values are gone")
    assert server.model()["state"] == "ready"
    assert server.http.get("health").status_code == 200
    again = said(server)
    assert (again["text"], again["meta_info"]["cached_tokens"]) == (expected, 0)
    assert server.engine().pid == engine.pid


@hurried
def test_the_model_is_unloaded_and_the_next_request_loads_it(server: Server) -> None:
    expected, engine = said(server)["text"], server.engine()
    wait_for(lambda: not engine.is_running(), "the engine's process has ended")
    wait_for(lambda: server.model()["state"] == "stopped", "the server says so")
    assert server.model()["unasked_seconds"] == 5
    assert server.http.get("health").status_code == 200, "a request would be served"
    assert said(server)["text"] == expected
    assert server.engine().pid != engine.pid
    assert "nobody has asked it anything for 5 seconds" in server.log.read_text()
    assert server.model()["unasked_seconds"] is None
    assert server.http.post("api/v1/model/unload").json()["unasked_seconds"] is None, "somebody wanted that"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(long_model: Path) -> AsyncIterator[EngineClient]:
    """The one for all tests here."""
    client = EngineClient(EngineConfig(model=str(long_model)), logging.getLogger("test"))
    yield client
    await client.close(0)


@pytest_asyncio.fixture(loop_scope="module")
async def client(made: EngineClient, clock: SimpleNamespace) -> EngineClient:
    """One that is ready, and whose idle time the clock tells."""
    await made.load()
    return made


async def ask(client: EngineClient) -> None:
    heard = asyncio.Event()
    request = GenerateRequest(rid="r", text="a", params=SamplingParams(max_new_tokens=1))
    client.submit(request, SimpleNamespace(add=lambda *_: heard.set()))
    await asyncio.wait_for(heard.wait(), PATIENCE)
    client.forget("r")


async def tell(client: EngineClient) -> None:
    client.tell(FlushCache())


async def load_an_adapter(client: EngineClient) -> None:
    with pytest.raises(InvalidRequest, match="no such folder"):
        await client.load_adapter("a", "/nonexistent")


async def load_what_is_loaded(client: EngineClient) -> None:
    await client.load()


@together
@pytest.mark.parametrize("act", [ask, tell, load_an_adapter, load_what_is_loaded])
async def test_time_counts_from_what_was_last_asked_though_no_look_saw_it(
    act: Callable[[EngineClient], Awaitable[None]], client: EngineClient, clock: SimpleNamespace
) -> None:
    idle = IdleUnload(client, 60.0, logging.getLogger("test"))
    clock.now += 50
    await idle.look()
    await act(client)
    clock.now += 59
    await idle.look()
    assert client.state == "ready"
    assert client.idle_seconds == 59


@together
async def test_who_is_asked_stays_however_long_that_takes(client: EngineClient, clock: SimpleNamespace) -> None:
    idle = IdleUnload(client, 60.0, logging.getLogger("test"))
    outputs: list[GenerateOutput] = []
    params = SamplingParams(max_new_tokens=BUSY["max_new_tokens"], ignore_eos=True)
    client.submit(GenerateRequest(rid="r", text="a", params=params), SimpleNamespace(add=lambda *o: outputs.extend(o)))
    await until(lambda: outputs)
    clock.now += 10**6
    await idle.look()
    assert client.state == "ready"
    assert not outputs[-1].finish_reason, "it was asked all the while"
    client.abort("r")
    await until(lambda: outputs[-1].finish_reason)
    client.forget("r")


async def release_memory(client: EngineClient) -> None:
    await client.change_memory(ReleaseMemory, ["kv_cache"])


@together
@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("act", [ask, load_an_adapter, release_memory])
async def test_who_waits_has_it_done_first(
    act: Callable[[EngineClient], Awaitable[None]], seconds: float, client: EngineClient, clock: SimpleNamespace
) -> None:
    idle = IdleUnload(client, seconds, logging.getLogger("test"))
    waiting = asyncio.create_task(act(client))
    await asyncio.sleep(0)
    clock.now += seconds
    await idle.look()
    assert client.state == "ready"
    await waiting
    assert client.state != "stopped"


@together
async def test_none_is_never(client: EngineClient, clock: SimpleNamespace) -> None:
    idle = IdleUnload(client, None, logging.getLogger("test"))
    idle.start()
    clock.now += 10**9
    await idle.look()
    assert client.state == "ready"
    idle.stop()


@together
async def test_who_is_paused_stays_however_long_that_takes(client: EngineClient, clock: SimpleNamespace) -> None:
    idle = IdleUnload(client, 60.0, logging.getLogger("test"))
    client.tell(PauseGeneration("in_place"))
    await until(lambda: client.status and client.status.paused)
    clock.now += 10**6
    await idle.look()
    assert client.state == "ready"
    client.tell(ContinueGeneration())
    await until(lambda: client.status and not client.status.paused)
    clock.now += 59
    await idle.look()
    assert client.state == "ready", "its time begins where the pause ends"
    clock.now += 1
    await idle.look()
    assert client.state == "stopped"
    clock.now += 1000
    await idle.look()
    assert client.state == "stopped", "what is stopped is not stopped again"
