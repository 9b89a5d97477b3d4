"""The engine gives its memory back while it lives, and serves the same text when it has it again."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from nbgen.sse import Decoder
from tests.conftest import save_model
from tests.server.conftest import BUSY, Server, wait_for

GREEDY = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
MB = 2**20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model whose weights can be seen in its memory: 64 MB in float32, loaded from bfloat16."""
    folder = tmp_path_factory.mktemp("heavy")
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 2, "max_position_embeddings": 16_384}
    sizes |= {"num_key_value_heads": 4}
    model = save_model(folder / "model", **sizes)
    server = Server(folder / "server", f"--NbgenApp.model={model}", "--NbgenApp.dtype=float32")
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def heavy(made: Server) -> Server:
    """The same, with its model loaded."""
    return made.ready()


def said(server: Server) -> str:
    answer = server.http.post("generate", json=GREEDY)
    assert answer.status_code == 200, answer.text
    return answer.json()["text"]


def waits(answer: Future[str]) -> bool:
    """Whether it takes longer than a refusal."""
    return not wait([answer], 2).done


def resident(server: Server) -> int:
    return server.engine().memory_info().rss


def test_weights_and_cache_leave_memory_and_come_back(heavy: Server) -> None:
    expected, pid, before = said(heavy), heavy.model()["engine_pid"], resident(heavy)
    assert heavy.http.post("release_memory_occupation", json={}).json() is None
    assert before - resident(heavy) > 40 * MB, "the weights are still there"
    assert heavy.model()["state"] == "released"
    assert heavy.model()["status"]["blocks_total"] == 0
    refused = heavy.http.post("generate", json=GREEDY)
    assert refused.status_code == 503
    assert "resume" in refused.text
    assert heavy.http.get("health").status_code == 503
    (entry,) = heavy.http.post("v2/repository/index").json()
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "released")
    for path in ("v2/health/ready", f"v2/models/{entry['name']}/ready"):
        assert heavy.http.get(path).status_code == 400
    streamed = heavy.http.post(f"v2/models/{entry['name']}/generate_stream", json={"text_input": "a", "stream": True})
    assert (streamed.status_code, bool(streamed.headers.get("retry-after"))) == (503, True)
    assert streamed.text.startswith('data: {"error":')
    assert heavy.http.post("resume_memory_occupation", json={}).status_code == 200
    assert heavy.model()["state"] == "ready"
    assert said(heavy) == expected
    assert heavy.model()["engine_pid"] == pid, "the process lived on"


def test_the_cache_alone_leaves_memory(heavy: Server) -> None:
    prompts = [[50 + number] * 1500 for number in range(4)]
    long = {"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    assert heavy.http.post("generate", json=long).status_code == 200
    before = resident(heavy)
    heavy.http.post("release_memory_occupation", json={"tags": ["kv_cache"]})
    assert before - resident(heavy) > 40 * MB, "6000 tokens of keys and values are still there"
    heavy.http.post("resume_memory_occupation", json={"tags": ["kv_cache"]})
    assert said(heavy)


def test_a_running_stream_ends_with_an_error(heavy: Server) -> None:
    body = {"text": "Hello", "stream": True, "sampling_params": BUSY}
    decoder, found, released = Decoder(), [], False
    with heavy.http.stream("POST", "generate", json=body) as answer:
        for chunk in answer.iter_bytes():
            found += decoder.feed(chunk)
            if len(found) > 2 and not released:
                released = heavy.http.post("release_memory_occupation").status_code == 200
    assert any("memory was released" in event.data for event in found[-2:])
    assert heavy.http.post("resume_memory_occupation").status_code == 200
    assert said(heavy)


def test_loading_the_model_resumes_it(heavy: Server) -> None:
    heavy.http.post("release_memory_occupation")
    pid = heavy.model()["engine_pid"]
    assert heavy.ready().model()["engine_pid"] == pid
    assert said(heavy)


def test_who_asks_while_it_comes_back_is_served(heavy: Server) -> None:
    expected = said(heavy)
    heavy.http.post("release_memory_occupation")
    engine = heavy.engine()
    engine.suspend()
    with ThreadPoolExecutor() as pool:
        resumed = pool.submit(heavy.http.post, "resume_memory_occupation")
        try:
            tries = (pool.submit(said, heavy) for _ in range(20))  # until the server has heard of it
            asked = next(answer for answer in tries if waits(answer))
        finally:
            engine.resume()
        assert resumed.result().status_code == 200
        assert asked.result() == expected


def test_what_cannot_be_is_refused(heavy: Server) -> None:
    for path, tags in (("release", ["weights"]), ("release", ["everything"]), ("resume", [])):
        answer = heavy.http.post(f"{path}_memory_occupation", json={"tags": tags})
        assert answer.status_code == 400, answer.text
        assert "kv_cache" in answer.json()["error"]["message"]
    assert said(heavy)


def test_a_crash_while_released_brings_a_whole_engine_back(heavy: Server) -> None:
    heavy.http.post("release_memory_occupation")
    heavy.engine().kill()
    wait_for(lambda: heavy.model()["state"] == "ready", "the engine is back")
    assert said(heavy)


def test_without_a_model_there_is_nothing_to_release(heavy: Server) -> None:
    heavy.http.post("api/v1/model/unload")
    assert heavy.http.post("release_memory_occupation").status_code == 200
    assert heavy.http.post("resume_memory_occupation").status_code == 200
    assert heavy.model()["state"] == "stopped"
