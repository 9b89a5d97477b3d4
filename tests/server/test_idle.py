"""A server that nobody asks anything gives memory back, first the cache's and then all, and answers as before."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from nbgen.server import idle_unload
from nbgen.server.idle_unload import IdleUnload
from tests.conftest import save_model
from tests.server.conftest import BUSY, Server, wait_for

GREEDY = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
MB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose cache can be seen in its memory: 16 kB a token."""
    folder = tmp_path_factory.mktemp("idle")
    sizes = {"hidden_size": 512, "num_key_value_heads": 4, "max_position_embeddings": 16_384}
    model = save_model(folder / "model", **sizes)
    options = ["--dtype=float32", "--NbgenApp.idle_release_seconds=1", "--NbgenApp.idle_unload_seconds=5"]
    server = Server(folder / "server", f"--model={model}", *options, standby=True)
    try:
        yield server.ready()
    finally:
        server.stop()


def said(server: Server, body: dict = GREEDY) -> dict:
    answer = server.http.post("generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_cache_leaves_memory_and_nobody_is_refused(server: Server) -> None:
    expected = said(server)["text"]
    said(server, GREEDY | {"text": None, "input_ids": [9] * 8000})
    assert said(server)["meta_info"]["cached_tokens"] > 0
    engine, full = server.engine(), server.engine().memory_info().rss
    wait_for(lambda: full - engine.memory_info().rss > 60 * MB, "8000 tokens of keys and values are gone")
    assert server.model()["state"] == "ready"
    assert server.http.get("health").status_code == 200
    again = said(server)
    assert (again["text"], again["meta_info"]["cached_tokens"]) == (expected, 0)
    assert server.engine().pid == engine.pid


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


@pytest.mark.parametrize("reason", ["asked", "paused"])
def test_who_is_asked_or_paused_stays_however_long_that_takes(reason: str, server: Server) -> None:
    pid = server.ready().engine().pid
    with contextlib.ExitStack() as stack:
        if reason == "asked":
            stack.enter_context(server.asking("generate", {"text": "Hi", "sampling_params": BUSY}))
        else:
            server.http.post("pause_generation", json={"mode": "in_place"})
            stack.callback(server.http.post, "continue_generation", json={})
        with pytest.raises(AssertionError, match="not within"):
            wait_for(lambda: server.model()["state"] != "ready", "it is unloaded", seconds=6.5)
        assert server.engine().pid == pid


class Engine:
    """Whether one is idle, and how often it was stopped."""

    def __init__(self) -> None:
        self.is_idle, self.stops = True, 0

    async def stop(self, unasked_seconds: float | None = None) -> None:
        assert unasked_seconds == 60.0
        self.stops += 1
        self.is_idle = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(idle_unload, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


async def test_time_counts_from_when_it_was_last_asked(clock: SimpleNamespace) -> None:
    engine, log = Engine(), SimpleNamespace(info=lambda *_: None)
    idle = IdleUnload(engine, 60.0, log)
    engine.is_idle = False
    clock.now += 1000
    await idle.look()
    engine.is_idle = True
    clock.now += 59
    await idle.look()
    assert engine.stops == 0
    clock.now += 1
    await idle.look()
    assert engine.stops == 1
    clock.now += 1000
    await idle.look()
    assert engine.stops == 1, "what is stopped is not stopped again"


async def test_none_is_never(clock: SimpleNamespace) -> None:
    engine = Engine()
    idle = IdleUnload(engine, None, SimpleNamespace())
    idle.start()
    clock.now += 10**9
    await idle.look()
    assert engine.stops == 0
    idle.stop()
