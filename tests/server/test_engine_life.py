"""The engine's process: killed, hung, stopped, replaced, and gone with its server."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from nbgen.sse import Decoder
from tests.conftest import edit, gone
from tests.server.conftest import BUSY, PATIENCE, Server, events, wait_for

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[Server]:
    """A server of its own, whose engine the tests may kill. It is killed in the end; no engine outlives it."""
    server = Server(
        tmp_path_factory.mktemp("mortal"), f"--model={long_model}", "--dtype=float32", "--NbgenApp.autoload=False"
    )
    yield server
    engine = server.ready().engine()
    server.stop(signal.SIGKILL)
    wait_for(lambda: gone(engine.pid), "the engine is gone")


def test_a_run_shows_the_loading_and_many_waiters_share_one_start(mortal: Server) -> None:
    mortal.http.post("api/v1/model/unload")
    others = [
        threading.Thread(target=mortal.http.post, args=("generate",), kwargs={"json": {"text": "a"}}) for _ in "ab"
    ]
    for other in others:
        other.start()
    found = events(mortal.http, "POST", "api/v1/runs", json={"prompt": "hello", "params": GREEDY})
    for other in others:
        other.join(PATIENCE)
    names = [event.event for event in found]
    states = [json.loads(event.data)["state"] for event in found if event.event == "run"]
    assert "progress" in names
    assert "loading" in states
    assert states[-1] == "running"
    assert names[-1] == "done"
    engines = [child for child in psutil.Process(mortal.process.pid).children() if "nbgen.engine" in child.cmdline()]
    assert [engine.pid for engine in engines] == [mortal.model()["engine_pid"]]


def test_a_killed_engine_ends_streams_at_once_refuses_who_waits_and_comes_back(mortal: Server) -> None:
    before = mortal.ready().http.post("generate", json={"text": "hello", "sampling_params": GREEDY}).json()["text"]
    run = {"prompt": "a", "params": BUSY, "id": "lost", "stream": False}
    answers: list[httpx.Response] = []
    call = {"text": "a", "sampling_params": BUSY}
    callers = [
        threading.Thread(target=mortal.http.post, args=("api/v1/runs",), kwargs={"json": run}),
        threading.Thread(target=lambda: answers.append(mortal.http.post("generate", json=call))),
    ]
    for caller in callers:
        caller.start()
    sglang = {"text": "a", "sampling_params": BUSY, "stream": True}
    message = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": BUSY["max_new_tokens"]}
    message |= {"ignore_eos": True, "stream": True}
    with (
        mortal.http.stream("POST", "generate", json=sglang) as answer,
        mortal.http.stream("POST", "v1/messages", json=message) as other,
    ):
        wait_for(lambda: mortal.http.get("api/v1/runs/lost").json().get("seq"), "it has output")
        wait_for(lambda: (mortal.model()["status"] or {}).get("running") == 4, "all run")
        mortal.engine().kill()
        wait_for(lambda: mortal.http.get("health").status_code == 503, "health is red")
        *_, error, done = Decoder().feed(answer.read())
        *_, failed = Decoder().feed(other.read())
        for caller in callers:
            caller.join(PATIENCE)
    assert done.data == "[DONE]"
    words = "the engine was killed (signal 9), perhaps for want of memory; it is starting again"
    assert json.loads(error.data)["error"] | {"type": ""} == {
        "message": words,
        "type": "",
        "code": 503,
        "retryable": True,
    }
    assert (failed.event, json.loads(failed.data)["error"]) == ("error", {"type": "overloaded_error", "message": words})
    assert (answers[0].status_code, answers[0].json()["message"]) == (503, words)
    assert answers[0].headers["retry-after"]
    lost = mortal.http.get("api/v1/runs/lost").json()
    assert lost["state"] == "error"
    assert lost["text"], "what came before stays"
    assert lost["error"] == {"message": words, "code": 503, "retryable": True}
    wait_for(lambda: mortal.http.get("health").status_code == 200, "health is green again")
    after = mortal.http.post("generate", json={"text": "hello", "sampling_params": GREEDY}).json()["text"]
    assert after == before


def test_after_tritons_unload_any_dialect_brings_the_model_back_for_all(mortal: Server) -> None:
    def state() -> str:
        return mortal.http.post("v2/repository/index").json()[0]["state"]

    engine = mortal.ready().engine()
    name = mortal.http.post("v2/repository/index").json()[0]["name"]
    mortal.http.post(f"v2/repository/models/{name}/unload")
    assert (state(), mortal.http.get(f"v2/models/{name}").status_code) == ("UNAVAILABLE", 404)
    assert not engine.is_running()
    assert mortal.http.post("generate", json={"text": "a", "sampling_params": {"max_new_tokens": 1}}).status_code == 200
    assert (state(), mortal.http.get(f"v2/models/{name}").status_code) == ("READY", 200)


def test_unload_ends_the_process_before_it_answers_and_load_brings_it_back_with_as_many_bits_as_wanted(
    mortal: Server, long_model: Path
) -> None:
    engine = mortal.ready().engine()
    answer = mortal.http.post("api/v1/model/unload").json()
    assert (answer["state"], answer["engine_pid"], answer["model"]) == ("stopped", None, None)
    assert not engine.is_running()
    assert mortal.http.post("api/v1/model/unload").json()["state"] == "stopped"
    asked: list[tuple[dict[str, str], list[str], str | None]] = [
        ({"quantization": "int4"}, ["progress", "ready"], "int4"),
        ({}, ["ready"], "int4"),
        ({"model": str(long_model), "quantization": "none"}, ["progress", "ready"], None),
    ]
    sizes: list[int] = []
    for body, told, quantization in asked:
        found = events(mortal.http, "POST", "api/v1/model/load", json=body)
        assert list(dict.fromkeys(event.event for event in found)) == told
        assert json.loads(found[-1].data)["state"] == "ready"
        model = mortal.model()["model"]
        assert model["quantization"] == quantization
        sizes.append(model["weight_bytes"])
        assert mortal.http.get("server_info").json()["quantization"] == quantization
        assert mortal.http.post("generate", json={"text": "a", "sampling_params": {"max_new_tokens": 2}}).is_success
    assert sizes[0] == sizes[1] < sizes[2]
    refused = mortal.http.post("api/v1/model/load", json={"quantization": "int3"})
    assert refused.status_code == 400
    assert "int3" in refused.text


def test_a_model_whose_files_are_wrong_costs_nobody_the_one_that_is_there(
    mortal: Server, long_model: Path, tmp_path: Path
) -> None:
    mortal.ready()
    typo = mortal.http.post("api/v1/model/load", json={"model": str(long_model.parent / "nothing")})
    assert typo.status_code == 422
    assert mortal.model()["name"] == str(long_model), "a slip of the pen must not cost the model that is there"
    empty = mortal.http.post("api/v1/model/load", json={"model": str(long_model.parent)})
    assert empty.status_code == 422, "what is told before loading begins is no stream"
    assert "no config.json" in empty.text
    for name in ("meta-llama/Llama-3", "Owner/Na me", "Owner/a--b"):
        assert mortal.http.post("api/v1/model/load", json={"model": name}).status_code == 422, name
    broken = shutil.copytree(long_model, tmp_path / "broken")
    for config, words in (("{", "not JSON"), ("[]", "no JSON object"), ('{"hidden_size": 8}', "no model_type")):
        (broken / "config.json").write_text(config)
        assert words in mortal.http.post("api/v1/model/load", json={"model": str(broken)}).text
    coded = shutil.copytree(long_model, tmp_path / "coded")
    edit(coded / "config.json", auto_map={"AutoModelForCausalLM": "a.B"})
    assert "transformers has llama itself" in mortal.http.post("api/v1/model/load", json={"model": str(coded)}).text
    half = shutil.copytree(long_model, tmp_path / "half", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "no weights" in mortal.http.post("api/v1/model/load", json={"model": str(half)}).text
    whole = (long_model / "model.safetensors").read_bytes()
    for content in (whole[: len(whole) // 2], b"nothing", b"5 kB of it" * 500):
        (half / "model.safetensors").write_bytes(content)
        assert "is damaged" in mortal.http.post("api/v1/model/load", json={"model": str(half)}).text
    mute = shutil.copytree(long_model, tmp_path / "mute", ignore=shutil.ignore_patterns("tokenizer*"))
    assert "no tokenizer" in mortal.http.post("api/v1/model/load", json={"model": str(mute)}).text
    unknown = shutil.copytree(long_model, tmp_path / "unknown")
    edit(unknown / "config.json", model_type="frobnicator")
    assert "no causal language model" in mortal.http.post("api/v1/model/load", json={"model": str(unknown)}).text
    assert mortal.http.post("generate", json={"text": "a", "sampling_params": {"max_new_tokens": 2}}).is_success
    assert (mortal.model()["name"], mortal.model()["state"]) == (str(long_model), "ready")
    assert mortal.model()["loadable"] == [str(long_model), "bundled"], "what could not be loaded is not listed"


def test_it_stays_down_after_too_many_crashes_or_a_load_that_fails_until_a_model_is_loaded(
    mortal: Server, long_model: Path, tmp_path: Path
) -> None:
    mortal.http.post("api/v1/model/unload")
    seen: set[int] = set()

    def crash_again() -> bool:
        model = mortal.model()
        if model["engine_pid"] and model["engine_pid"] not in seen:
            seen.add(model["engine_pid"])
            psutil.Process(model["engine_pid"]).kill()
        return model["state"] == "failed"

    threading.Thread(target=mortal.http.post, args=("generate",), kwargs={"json": {"text": "a"}}).start()
    wait_for(crash_again, "it gives up")
    assert "stays down" in mortal.model()["error"]
    for asked in (("POST", "generate", {"text": "a"}), ("GET", "tokenizer_info", None)):
        method, route, body = asked
        assert mortal.http.request(method, route, json=body).status_code == 503
    assert mortal.model()["state"] == "failed"
    damaged = shutil.copytree(long_model, tmp_path / "damaged")
    edit(damaged / "config.json", num_hidden_layers=99)  # which shows as it is loaded
    found = events(mortal.http, "POST", "api/v1/model/load", json={"model": str(damaged)})
    assert found[-1].event == "error"
    assert mortal.model()["state"] == "failed"
    assert mortal.http.get("health").status_code == 503
    refused = mortal.http.post("generate", json={"text": "a"})
    assert refused.status_code == 503
    assert refused.json()["message"] == mortal.model()["error"]
    assert repr(str(damaged)) in mortal.model()["error"]
    assert "%nbgen load bundled" in mortal.model()["error"]
    assert events(mortal.http, "POST", "api/v1/model/load", json={"model": str(long_model)})[-1].event == "ready"


def test_a_stopping_server_lets_what_runs_end_and_leaves_nothing(tmp_path: Path, long_model: Path) -> None:
    server = Server(tmp_path, f"--model={long_model}", "--dtype=float32").ready()
    engine, file = server.engine(), server.runtime_file
    assert file.stat().st_mode & 0o777 == 0o600
    params = {**GREEDY, "max_new_tokens": 300}
    with server.http.stream("POST", "api/v1/runs", json={"prompt": "a", "params": params}) as answer:
        decoder, chunks = Decoder(), answer.iter_bytes()
        found = decoder.feed(next(chunks))
        server.process.terminate()
        found += [event for chunk in chunks for event in decoder.feed(chunk)]
    assert found[-1].event == "done"
    assert sum(json.loads(e.data)["tokens"] for e in found if e.event == "delta") == 300
    assert server.stop() == 0
    assert gone(engine.pid)
    assert not file.exists()


def test_nothing_is_started_before_it_is_needed_and_all_ends_with_the_standard_input(
    tmp_path: Path, long_model: Path
) -> None:
    server = Server(tmp_path, f"--model={long_model}", "--NbgenApp.stop_on_eof=True", "--NbgenApp.autoload=False")
    assert (server.model()["state"], server.model()["engine_pid"]) == ("stopped", None)
    assert server.http.get("health").status_code == 200
    assert server.stop(0) == 0
    assert not server.runtime_file.exists()
