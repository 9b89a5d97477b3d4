"""LoRA adapters over HTTP: loaded and unloaded while others are served, mixed in one batch, remembered by name."""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from nbgen.commands import AdapterState
from nbgen.engine.slow_lane import LONG
from nbgen.engine_config import EngineConfig
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from nbgen.server.adapters import Adapters
from nbgen.server.engine_client import EngineClient
from tests.adapters import peft_continuation, save_adapter
from tests.server.conftest import BUSY, PATIENCE, Server, events, wait_for
from tests.server.test_engine_client import Heard

PROMPT = list(range(20, 40))
NEW_TOKENS = 8
GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft asks for it
]


@pytest.fixture(scope="module")
def folders(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {name: save_adapter(place / name, long_model, seed, r=seed + 2) for seed, name in enumerate("abc")}


@pytest.fixture(scope="module")
def expected(long_model: Path, folders: dict[str, Path]) -> dict[str | None, list[int]]:
    """peft's own continuations."""
    return {name: peft_continuation(long_model, folders.get(name), PROMPT, NEW_TOKENS) for name in (None, *folders)}


@pytest.fixture(scope="module")
def adapted(long_model: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has the adapter `a` from its start."""
    options = [f"--NbgenApp.model={long_model}", "--NbgenApp.dtype=float32", f"--adapters=a={folders['a']}"]
    made = Server(tmp_path_factory.mktemp("adapted"), *options)
    yield made.ready()
    made.stop()


@pytest.fixture
def server(adapted: Server, folders: dict[str, Path], long_model: Path) -> Server:
    """The same, as it is after its start."""
    adapted.serving(long_model)
    change(adapted, "load", lora_name="a", lora_path=str(folders["b"]))
    for name in change(adapted, "unload", lora_name="a")["loaded_adapters"]:
        change(adapted, "unload", lora_name=name)
    assert change(adapted, "load", lora_name="a", lora_path=str(folders["a"]))["loaded_adapters"].keys() == {"a"}
    return adapted


def ask(server: Server, **fields: Any) -> httpx.Response:
    return server.http.post("generate", json={"input_ids": PROMPT, "sampling_params": GREEDY, **fields})


def change(server: Server, what: str, **fields: Any) -> dict[str, Any]:
    answer = server.http.post(f"{what}_lora_adapter", json=fields)
    assert answer.status_code == (200 if answer.json()["success"] else 400)
    return answer.json()


def test_a_mixed_batch_streams_what_peft_writes(
    server: Server, folders: dict[str, Path], expected: dict[str | None, list[int]]
) -> None:
    for name in "bc":
        answer = change(server, "load", lora_name=name, lora_path=str(folders[name]))
        assert answer["error_message"] is None
    assert answer["loaded_adapters"] == {name: str(folder) for name, folder in folders.items()}
    names = [None, "a", "b", "c", None, "b"]
    batch = {"input_ids": [PROMPT] * 6, "lora_path": names, "sampling_params": GREEDY}
    whole = server.http.post("generate", json=batch).json()
    assert [item["output_ids"] for item in whole] == [expected[name] for name in names]
    last: dict[int, list[int]] = {}
    for event in events(server.http, "POST", "generate", json=batch | {"stream": True})[:-1]:
        chunk = json.loads(event.data)
        last[chunk["index"]] = chunk["output_ids"]
    assert [last[index] for index in range(6)] == [expected[name] for name in names]
    again = ask(server, lora_path="a").json()
    assert (again["output_ids"], again["meta_info"]["cached_tokens"]) == (expected["a"], len(PROMPT) - 1)
    sampled = server.http.post("generate", json=batch | {"sampling_params": {**GREEDY, "n": 2}}).json()
    assert [item["output_ids"] for item in sampled] == [expected[name] for name in names for _ in range(2)]
    assert server.http.get("server_info").json()["enable_lora"] is True


def test_a_name_that_was_unloaded_is_loaded_again_by_a_request(
    server: Server, folders: dict[str, Path], expected: dict[str | None, list[int]]
) -> None:
    assert ask(server, lora_path="a").json()["output_ids"] == expected["a"]
    assert change(server, "unload", lora_name="a")["loaded_adapters"] == {}
    assert "does not exist" in change(server, "unload", lora_name="a")["error_message"]
    again = ask(server, lora_path="a").json()
    assert (again["output_ids"], again["meta_info"]["cached_tokens"]) == (expected["a"], 0)
    refused = change(server, "load", lora_name="a", lora_path=str(folders["a"]))
    assert "already loaded" in refused["error_message"]
    change(server, "unload", lora_name="a")
    change(server, "load", lora_name="a", lora_path=str(folders["b"]))
    assert ask(server, lora_path="a").json()["output_ids"] == expected["b"], "the name's new meaning"


def test_a_request_hears_why_its_adapter_could_not_be_loaded_and_another_tries_again(
    server: Server, folders: dict[str, Path], expected: dict[str | None, list[int]], tmp_path: Path
) -> None:
    place = shutil.copytree(folders["c"], tmp_path / "moved")
    assert change(server, "load", lora_name="gone", lora_path=str(place))["success"]
    change(server, "unload", lora_name="gone")
    shutil.rmtree(place)
    for damage, words in ((None, "no such folder"), (b"nothing", "model.safetensors is damaged")):
        if damage:
            shutil.copytree(folders["c"], place)
            (place / "adapter_model.safetensors").write_bytes(damage)
        refused = ask(server, lora_path="gone")
        assert (refused.status_code, words in refused.text) == (400, True), refused.text
    shutil.rmtree(place)
    shutil.copytree(folders["c"], place)
    assert ask(server, lora_path="gone").json()["output_ids"] == expected["c"]


async def test_a_request_loads_no_adapter_a_second_time_that_is_being_loaded() -> None:
    """Or else the engine's refusal of the second would count as the adapter's end, and nobody could unload it."""
    adapters = Adapters("base", {"a": "/before"})
    adapters.unload("a")
    command = adapters.load("a", "/after")
    loading = asyncio.create_task(adapters.done(command))
    await asyncio.sleep(0)
    assert not [*adapters.for_request("a")]
    adapters.heard(AdapterState(rid=command.rid, name="a"))
    await loading
    assert (adapters.loaded, [*adapters.for_request("a")]) == ({"a": "/after"}, [])
    adapters.unload("a")
    assert [each.folder for each in adapters.for_request("a")] == ["/after"]


def test_unloading_waits_for_who_runs_and_holds_up_nobody_else(
    server: Server, expected: dict[str | None, list[int]]
) -> None:
    busy = {"input_ids": PROMPT, "sampling_params": BUSY, "lora_path": "a", "rid": "long", "stream": True}
    done: list[dict[str, Any]] = []
    unloading = threading.Thread(target=lambda: done.append(change(server, "unload", lora_name="a")))
    with server.http.stream("POST", "generate", json=busy) as answer:
        chunks = answer.iter_bytes()
        next(chunks)
        unloading.start()
        wait_for(lambda: len(server.http.get("v1/models").json()["data"]) == 1, "the name is gone")
        assert ask(server).json()["output_ids"] == expected[None]
        assert ask(server, lora_path="a").json()["output_ids"] == expected["a"], "loaded beside the old one"
        assert done == []
        server.http.post("abort_request", json={"rid": "long"})
    unloading.join(PATIENCE)
    assert done[0]["success"]
    assert ask(server, lora_path="a").json()["output_ids"] == expected["a"]


async def test_unloading_waits_for_who_has_come_and_whose_long_text_is_still_being_read(
    tiny_model: Path, tmp_path: Path
) -> None:
    client, heard = EngineClient(EngineConfig(model=str(tiny_model)), logging.getLogger("test")), Heard()
    try:
        await client.start()
        await client.load_adapter("a", str(save_adapter(tmp_path / "a", tiny_model)))
        params = SamplingParams(max_new_tokens=1, ignore_eos=True)
        text = "a" * 10 * LONG
        client.submit(GenerateRequest(rid="r", text=text, truncate=True, adapter="a", params=params), heard)
        await client.unload_adapter("a")
        (output,) = heard.outputs
        assert output.finish_reason is not None
        assert output.finish_reason.type == "length", output.finish_reason
    finally:
        await client.close(0)


def test_openai_names_an_adapter_as_a_model(
    server: Server, long_model: Path, expected: dict[str | None, list[int]]
) -> None:
    text = server.http.post("detokenize", json={"tokens": expected["a"]}).json()["text"]
    body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    for named in ({"model": "a"}, {"model": f"{long_model}:a"}, {"model": "x", "lora_path": "a"}):
        answer = server.http.post("v1/completions", json=body | named).json()
        assert answer["choices"][0]["text"] == text
    plain = server.http.post("v1/completions", json=body | {"model": "x"}).json()["choices"][0]["text"]
    assert plain != text
    both = server.http.post("v1/completions", json=body | {"prompt": [PROMPT] * 2, "lora_path": [None, "a"]}).json()
    assert [choice["text"] for choice in both["choices"]] == [plain, text]
    cards = server.http.get("v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(str(long_model), None), ("a", str(long_model))]
    assert server.http.get("v1/models/a").json()["id"] == "a"
    unknown = server.http.post("v1/completions", json=body | {"model": f"{long_model}:nobody"})
    error = unknown.json()["error"]
    assert (unknown.status_code, error["param"], error["message"][:27]) == (400, "model", "model: the adapter 'nobody'")


def test_embeddings_are_made_through_the_adapter_that_the_model_names(server: Server, long_model: Path) -> None:
    def embed(**fields: str) -> tuple[str, list[float]]:
        answer = server.http.post("v1/embeddings", json={"input": PROMPT, "pooling": "mean", **fields}).json()
        return answer["model"], answer["data"][0]["embedding"]

    (base, plain), (_, adapted) = embed(), embed(lora_path="a")
    assert plain != adapted
    assert [embed(model=name) for name in ("a", f"{base}:a", "x", base)] == [
        ("a", adapted),
        (f"{base}:a", adapted),
        (base, plain),
        (base, plain),
    ]
    for model in (f"{long_model}:nobody", 5):
        refused = server.http.post("v1/embeddings", json={"input": PROMPT, "pooling": "mean", "model": model})
        assert (refused.status_code, refused.json()["param"]) == (400, "model")


def test_triton_names_an_adapter_too(server: Server, long_model: Path, expected: dict[str | None, list[int]]) -> None:
    """As vLLM's back end does: a parameter, a tensor or one of `sampling_parameters`."""
    path = f"v2/models/{long_model.name}/generate"
    body = {"input_ids": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    for named, name in (
        ({}, None),
        ({"lora_name": ""}, None),
        ({"lora_name": "a"}, "a"),
        ({"parameters": {"lora_name": "a"}}, "a"),
        ({"sampling_parameters": json.dumps({"lora_name": "a", "temperature": "0"})}, "a"),
    ):
        answer = server.http.post(path, json=body | named)
        assert answer.json()["output_ids"] == expected[name], named
    unknown = server.http.post(path, json=body | {"lora_name": "nobody"})
    assert (unknown.status_code, "never been loaded; loaded: a" in unknown.json()["error"]) == (400, True)


def test_errors_are_answers(server: Server, folders: dict[str, Path], long_model: Path, tmp_path: Path) -> None:
    unknown = ask(server, lora_path="nobody")
    assert (unknown.status_code, "never been loaded" in unknown.json()["error"]["message"]) == (400, True)
    assert "no such folder" in change(server, "load", lora_name="x", lora_path=str(tmp_path / "no"))["error_message"]
    own = change(server, "load", lora_name=str(long_model), lora_path=str(folders["a"]))
    assert "is the model's own name" in own["error_message"]
    assert server.http.post("load_lora_adapter", json={"lora_name": "x"}).json()["type"] == "Bad Request"
    assert server.http.post("unload_lora_adapter", json={}).status_code == 400
    two = ask(server, input_ids=[PROMPT] * 2, lora_path=["a"])
    assert (two.status_code, "lora_path" in two.text) == (400, True)
    assert ask(server, lora_path="").status_code == 200


def test_a_new_engine_process_has_the_adapters_too_unless_it_has_another_model(
    server: Server, tiny_model: Path, expected: dict[str | None, list[int]]
) -> None:
    first = server.engine()
    first.kill()
    wait_for(lambda: server.model()["state"] == "ready" and server.model()["engine_pid"] != first.pid, "it is back")
    assert ask(server, lora_path="a").json()["output_ids"] == expected["a"]
    server.serving(tiny_model)
    assert "never been loaded" in ask(server, lora_path="a").text, "another model's"
