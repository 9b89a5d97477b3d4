"""What SGLang's clients call beside `/generate`: pausing, health, what the server is, tokens, metrics."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoTokenizer

from tests.server.conftest import BUSY, PATIENCE, Server, wait_for

CHAT = [{"role": "user", "content": "hello"}]


@contextmanager
def streaming(server: Server, **body: Any) -> Iterator[list[dict[str, Any]]]:
    """A stream of `/generate` read in another thread: its chunks as they come, all of them when the context ends."""
    chunks: list[dict[str, Any]] = []

    def read() -> None:
        with server.http.stream("POST", "generate", json={**body, "stream": True}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line[6:]))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield chunks
    finally:
        server.http.post("continue_generation")
        reader.join(PATIENCE)
    assert chunks[-1]["meta_info"]["finish_reason"], "the stream did not end"


def begun(chunks: list[dict[str, Any]]) -> None:
    wait_for(lambda: chunks, "the first chunk")


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_holds_all_that_runs_and_changes_nothing(server: Server, mode: str) -> None:
    server.idle()
    with streaming(server, text="a story", sampling_params=BUSY, rid=mode) as chunks:
        begun(chunks)
        paused = server.http.post("pause_generation", json={"mode": mode})
        assert (paused.status_code, paused.json()["status"]) == (200, "ok")
        wait_for(lambda: server.model()["status"]["paused"], "the engine pauses")
        assert server.model()["status"]["waiting" if mode == "retract" else "running"] == 1
        told = {path: server.http.get(path).status_code for path in ("health", "ping", "ready", "health_generate")}
        assert told == {"health": 200, "ping": 200, "ready": 503, "health_generate": 503}
        before = server.generated()
        time.sleep(0.7)
        assert server.generated() == before
        assert chunks[-1]["meta_info"]["finish_reason"] is None
        held = len(chunks[-1]["output_ids"])
        assert server.http.post("continue_generation", json={}).json()["status"] == "ok"
        wait_for(lambda: len(chunks[-1]["output_ids"]) > held + 20, "it goes on")
        wait_for(lambda: server.http.get("ready").status_code == 200, "it is ready")
        server.http.post("abort_request", json={"rid": mode})
    written = chunks[-1]["output_ids"]
    whole = {**BUSY, "max_new_tokens": len(written)}
    assert (
        server.http.post("generate", json={"text": "a story", "sampling_params": whole}).json()["output_ids"] == written
    )


def test_a_pause_may_abort_what_runs_and_what_comes_later_waits(server: Server) -> None:
    with streaming(server, text="a", sampling_params=BUSY) as chunks:
        begun(chunks)
        assert server.http.post("pause_generation").status_code == 200
        wait_for(lambda: chunks[-1]["meta_info"]["finish_reason"], "the stream ends")
        with streaming(server, text="a", sampling_params={"max_new_tokens": 2}) as later:
            time.sleep(0.5)
            assert not later
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_balancers_are_told_what_waits(server: Server) -> None:
    def load() -> dict[str, Any]:
        (found,) = server.http.get("v1/loads", params={"include": "core"}).json()["loads"]
        return dict(found)

    server.idle()
    wait_for(lambda: load()["num_total_tokens"] == 0, "nothing is there")
    server.http.post("pause_generation", json={"mode": "in_place"})
    with streaming(server, text="twelve bytes", sampling_params={"max_new_tokens": 2}):
        wait_for(lambda: load()["num_waiting_reqs"] == 1, "one waits")
        assert load()["num_waiting_uncached_tokens"] == load()["num_total_tokens"] == 12
        gauges = server.http.get("v1/loads?format=prometheus")
        assert gauges.headers["Content-Type"].startswith("text/plain")
        assert 'sglang_num_waiting_reqs{dp_rank="0"} 1' in gauges.text.splitlines()
        assert server.http.get("v1/loads?dp_rank=1").json()["loads"] == []
    wait_for(lambda: load()["num_waiting_uncached_tokens"] == 0, "it is done")
    refused = server.http.get("v1/loads?include=cores")
    assert (refused.status_code, "it may name all, core" in refused.json()["error"]["message"]) == (400, True)


def test_many_requests_at_once_are_all_aborted_and_all_answer(server: Server) -> None:
    server.idle()
    with ThreadPoolExecutor(32) as callers:
        body = {"text": "a", "sampling_params": BUSY}
        pending = [callers.submit(server.http.post, "generate", json=body) for _ in range(32)]
        wait_for(lambda: server.model()["status"]["running"] == 32, "all run")
        server.http.post("abort_request", json={"abort_all": True})
        answers = [future.result(timeout=PATIENCE) for future in pending]
    for answer in answers:
        meta = answer.json()["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["completion_tokens"] == len(answer.json()["output_ids"]) > 0
        assert meta["e2e_latency"] > 0
    server.idle()


def test_flush_waits_as_long_as_it_is_told(server: Server) -> None:
    flushed: list[str] = []
    flush = threading.Thread(target=lambda: flushed.append(server.http.post("flush_cache?timeout=60").text))
    with streaming(server, text="b", sampling_params=BUSY, rid="flush") as chunks:
        begun(chunks)
        assert server.http.post("flush_cache").status_code == 400
        flush.start()
        flush.join(0.5)
        assert not flushed
        server.http.post("abort_request", json={"rid": "flush"})
        flush.join(PATIENCE)
        assert flushed[0].startswith("Cache flushed.")
    for timeout in ("soon", "-1", "nan", "1e9"):
        assert server.http.get(f"flush_cache?timeout={timeout}").status_code == 400


def test_server_info_survives_many_calls_and_tells_what_is_there(server: Server) -> None:
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: server.http.get("server_info"), range(40)))
    assert {answer.status_code for answer in answers} == {200}
    info = server.http.get("get_server_info").json()
    assert (info["status"], info["tier"], info["device"]) == ("ready", "A", "cpu")
    assert isinstance(info["max_total_num_tokens"], int)
    assert info["max_total_num_tokens"] >= info["context_length"] == 16_384
    assert info["layers_in"] in ("C++", "transformers"), "depends on the machine's compiler"
    assert info["threads"] >= 1
    assert info["limits"]["run_seconds"] == 600
    assert server.key not in str(info)


@pytest.mark.parametrize("prefix", ["", "v1/"])
def test_tokens_there_and_back(server: Server, prefix: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(server.model()["name"])

    def ask(path: str, **body: Any) -> Any:
        answer = server.http.post(prefix + path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    one = ask("tokenize", prompt="hello, wörld")
    assert one["tokens"] == tokenizer.encode("hello, wörld")
    assert (one["count"], one["max_model_len"]) == (len(one["tokens"]), 16_384)
    assert ask("tokenize", prompt="", add_special_tokens=False)["tokens"] == []
    several = ask("tokenize", prompt=["a", "bc"])
    assert several["count"] == [1, 2]
    chat = ask("tokenize", messages=CHAT)["tokens"]
    assert chat == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    bare = ask("tokenize", messages=CHAT, add_generation_prompt=False)["tokens"]
    assert bare == tokenizer.apply_chat_template(CHAT, return_dict=False)
    assert ask("detokenize", tokens=one["tokens"])["text"] == "hello, wörld"
    assert ask("detokenize", tokens=several["tokens"])["text"] == ["a", "bc"]
    assert ask("detokenize", tokens=[])["text"] == ""
    assert ask("detokenize", tokens=[0, 104])["text"] == tokenizer.decode([104])
    assert ask("detokenize", tokens=[0, 104], skip_special_tokens=False)["text"] == tokenizer.decode([0, 104])


def test_special_tokens_and_the_template_are_told_as_vllm_tells_them(server: Server) -> None:
    tokenizer = AutoTokenizer.from_pretrained(server.ready().model()["name"])
    told = server.http.get("tokenizer_info").json()
    names = ("chat_template", "bos_token", "eos_token", "unk_token", "pad_token")
    assert told == {"tokenizer_class": type(tokenizer).__name__, **{name: getattr(tokenizer, name) for name in names}}
    assert told["chat_template"]
    assert told["eos_token"]
    assert "tokenizer" not in server.model()["model"], "which is asked for every second"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("tokenize", {}),
        ("tokenize", {"prompt": "x" * 300_000}),
        ("detokenize", {"tokens": [10**6]}),
    ],
)
def test_tokens_that_cannot_be_are_refused(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["object"] == "error"
    assert answer.json()["message"]


def samples(server: Server) -> Counter[str]:
    """What is counted; nothing of what has not happened yet."""
    answer = server.http.get("metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    name = server.model()["name"]
    families = text_string_to_metric_families(answer.text)
    found = [sample for family in families for sample in family.samples if sample.labels.get("model_name") == name]
    return Counter({sample.name: sample.value for sample in found if "le" not in sample.labels})


def test_metrics_count_requests_tokens_and_times(server: Server) -> None:
    body = {"text": "count this", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
    server.idle()
    server.http.post("generate", json=body)
    before = samples(server)
    server.http.post("generate", json=body)
    after = samples(server)
    grown = Counter({name: after[name] - before[name] for name in after})
    assert grown["sglang:num_requests_total"] == 1
    assert grown["sglang:prompt_tokens_total"] == 10
    assert grown["sglang:cached_tokens_total"] == 9
    assert grown["sglang:generation_tokens_total"] == 5
    assert grown["sglang:num_aborted_requests_total"] == 0
    assert grown["sglang:time_to_first_token_seconds_count"] == 1
    assert grown["sglang:inter_token_latency_seconds_count"] == 4
    assert grown["sglang:e2e_request_latency_seconds_count"] == 1
    assert 0 < after["sglang:cache_hit_rate"] <= 1
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput"):
        assert after[f"sglang:{name}"] >= 0


def test_metrics_tell_how_many_guesses_come_true(server: Server) -> None:
    body = {"text": "ab ab ab ab ab", "sampling_params": {"max_new_tokens": 60, "regex": "(ab ){20}"}}
    meta = server.http.post("generate", json=body).json()["meta_info"]
    assert meta["completion_tokens"] == 60
    after = wait_for(lambda: (now := samples(server))["sglang:spec_accept_rate"] and now, "the engine's pulse")
    assert 0 < after["sglang:spec_accept_rate"] <= 1
    assert after["sglang:spec_accept_length"] > 1
    info = server.http.get("server_info").json()
    assert info["speculative_algorithm"] == "NGRAM"
    assert info["internal_states"][0]["avg_spec_accept_length"] > 1


def test_tritons_metrics_stand_beside_them(server: Server) -> None:
    """As its dashboards name them: whole numbers, no `_total`, every reason from the start."""

    def found() -> dict[str, str]:
        lines = server.http.get("metrics/").text.splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line.startswith("nv_"))  # type: ignore[arg-type]

    model = server.http.post("v2/repository/index").json()[0]["name"]
    server.idle()
    aborted = samples(server)["sglang:num_aborted_requests_total"]
    before, labels = found(), f'{{model="{model}",version="1"}}'
    body = {"text_input": "a", "max_tokens": 20_000, "ignore_eos": True}
    server.http.post(f"v2/models/{model}/generate", json=body | {"max_tokens": 3})
    server.left(f"v2/models/{model}/generate", body)
    canceled = f'nv_inference_request_failure{{model="{model}",reason="CANCELED",version="1"}}'
    wait_for(lambda: int(found()[canceled]) == int(before[canceled]) + 1, "the caller who left is counted")
    after = found()
    for name in ("request_success", "count", "exec_count"):
        assert int(after[f"nv_inference_{name}{labels}"]) - int(before[f"nv_inference_{name}{labels}"]) == 1
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        name = f"nv_inference_{name}_duration_us{labels}"
        assert int(after[name]) >= int(before[name])
    for reason in ("REJECTED", "BACKEND", "OTHER"):
        name = canceled.replace("CANCELED", reason)
        assert after[name] == before[name]
    assert after[f"nv_inference_pending_request_count{labels}"] == "0"
    assert float(after[f"nv_model_load_duration_secs{labels}"]) > 0
    wait_for(lambda: samples(server)["sglang:num_aborted_requests_total"] == aborted + 1, "the engine has ended it")
