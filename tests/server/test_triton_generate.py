"""Triton's generate extension against a live server: exact types, events, echo, and every refusal in its words."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.conftest import Server, first_events

MODEL = "long-llama"
GREEDY = {"temperature": 0, "ignore_eos": True}


def post(server: Server, body: Any, *, path: str = "generate", model: str = MODEL, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.http.post(f"v2/models/{model}/{path}", content=content, headers=headers)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Every event, each exactly one line after `data: `."""
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def test_the_seeds_own_request(server: Server) -> None:
    answer = post(server, {"text_input": "client input", "parameters": {"stream": False, "temperature": 0}})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert " " not in answer.text.split('"text_output"')[0]
    body = answer.json()
    assert list(body) == ["model_name", "model_version", "text_output"]
    assert (body["model_name"], body["model_version"]) == (MODEL, "1")
    assert body["text_output"].startswith("client input")


def test_tensorrt_llms_request(server: Server) -> None:
    body = {
        "text_input": "What is machine learning?",
        "max_tokens": 20,
        "bad_words": "",
        "stop_words": "",
        "pad_id": 2,
        "end_id": 2,
        "top_p": 0,
        "temperature": 1.0,
        "random_seed": 7,
        "beam_width": 1,
    }
    first, again = post(server, body).json(), post(server, body).json()
    assert first["text_output"] == again["text_output"]


def test_a_stream_gives_what_the_whole_answer_does(server: Server) -> None:
    body = {"text_input": "hello", "max_tokens": 60, "parameters": GREEDY}
    whole = post(server, {**body, "exclude_input_in_output": True}).json()["text_output"]
    extras = {"stream": True, "return_finish_reason": True, "return_num_output_tokens": True, "id": "s"}
    streamed = events(post(server, {**body, **extras}, path="generate_stream"))
    assert "".join(event["text_output"] for event in streamed) == whole
    assert sum(event["num_output_tokens"] for event in streamed) == 60
    assert [event["finish_reason"] for event in streamed] == ["None"] * (len(streamed) - 1) + ["length"]
    assert {event["id"] for event in streamed} == {"s"}


def test_the_url_alone_does_not_stream(server: Server) -> None:
    streamed = events(post(server, {"text_input": "hello", "max_tokens": 5}, path="generate_stream"))
    assert len(streamed) == 1
    assert streamed[0]["text_output"].startswith("hello")


def test_extra_outputs_are_scalars_or_lists(server: Server) -> None:
    flags = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_finish_reason")
    counts = ("return_num_input_tokens", "return_num_output_tokens", "return_cumulative_logprob")
    body = post(
        server, {"text_input": "abc", "max_tokens": 2, "parameters": GREEDY} | dict.fromkeys(flags + counts, True)
    )
    answer = body.json()
    assert answer["num_input_tokens"] == 3
    assert answer["num_output_tokens"] == 2
    assert len(answer["output_log_probs"]) == 2
    assert len(answer["context_logits"]) == 3 * 260
    assert len(answer["generation_logits"]) == 2 * 260
    assert answer["cum_log_probs"] == answer["cumulative_logprob"] == pytest.approx(sum(answer["output_log_probs"]))


def test_options_come_by_every_name_and_way(server: Server) -> None:
    ways: list[dict[str, Any]] = [
        {"max_tokens": 3, "temperature": 0},
        {"parameters": {"max_tokens": "3", "temperature": "0"}},
        {"request_output_len": 3, "temperature": 0.0},
        {"sampling_parameters": '{"max_tokens": "3", "temperature": "0.0"}'},
        {"sampling_param_max_tokens": 3, "sampling_param_temperature": 0},
        {"max_new_tokens": 3, "runtime_top_k": 1},
        {"max_tokens": 3, "sampling_parameters": '{"max_tokens": 9, "temperature": 0}'},
    ]
    texts = {post(server, {"text_input": "abc", "ignore_eos": True, **way}).json()["text_output"] for way in ways}
    assert len(texts) == 1
    for name in ("prompt", "text", "QUERY"):
        assert post(server, {name: "abc", **ways[0], "ignore_eos": True}).json()["text_output"] in texts
    (long,) = texts
    stopped = post(server, {"text_input": "abc", **ways[0], "ignore_eos": True, "stop": [long[-1]]})
    assert stopped.json()["text_output"] == long[:-1].split(long[-1])[0] or stopped.status_code == 200


REFUSED: list[tuple[bytes, str]] = [
    (b"{", "failed to parse"),
    (b"{}", "expected number of inputs between 1 and"),
    (b'{"abc": 123}', "but got 0 inputs"),
    (b'{"stream": false}', "neither text_input nor input_ids"),
    (b'{"text_input": "a", "stream": "false"}', "attempt to access JSON non-boolean as boolean"),
    (b'{"text_input": "a", "seed": -1}', "non-unsigned-integer"),
    (b'{"text_input": "a", "prompt": "b"}', "exclude each other"),
    (b'{"text_input": "a", "input_ids": [5]}', "exclude each other"),
    (b'{"input_ids": [1000000]}', "out-of-vocabulary"),
    (b'{"input_ids": [-1]}', "out-of-vocabulary"),
    (b'{"text_input": "a", "temperature": -1}', "temperature"),
    (b'{"text_input": "a", "beam_width": 2}', "without beams"),
    (b'{"text_input": "a", "lora_name": "x"}', "lora_name: the adapter 'x' has never been loaded; loaded: none"),
    (b'{"text_input": "a", "lora_name": true}', "the adapter 'true' has never been loaded"),
    (b'{"text_input": "a", "stream": true, "exclude_input_in_output": false}', "exclude_input_in_output"),
    (b'{"text_input": "%b"}' % (b"x" * 20_000), "context length"),
]


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
@pytest.mark.parametrize(("body", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_before_inference_is_plain_json(server: Server, path: str, body: bytes, words: str) -> None:
    answer = post(server, body, path=path)
    assert answer.status_code == 400, answer.text[:300]
    assert answer.headers["content-type"] == "application/json"
    assert words in answer.json()["error"], answer.text[:300]


def test_unknown_models_win_over_broken_bodies(server: Server) -> None:
    assert post(server, b"{", model="x").status_code == 404
    assert "version 9 is not found" in post(server, b"{", model=f"{MODEL}/versions/9").text
    assert post(server, {"text_input": ["a"], "max_tokens": 1}, model=f"{MODEL}/versions/1").status_code == 200
    assert post(server, {"text_input": [[["a"]]], "max_tokens": 1}).status_code == 200


def test_generate_gives_one_response_or_an_error(server: Server) -> None:
    for tokens in (15_000, *[2] * 8):
        several = post(server, {"text_input": "a", "max_tokens": tokens, "stream": True, **GREEDY})
        assert several.status_code == 400
        assert "generate expects model to produce exactly 1 response" in several.json()["error"]
    one = post(server, {"text_input": "a", "max_tokens": 1, "stream": True, **GREEDY})
    assert one.status_code == 200, one.text


def test_events_arrive_as_they_are_made_and_leaving_stops_them(server: Server) -> None:
    """Also with a budget beyond the context, which is cut and not refused."""
    body = {"text_input": "a", "max_tokens": 10**6, "stream": True, **GREEDY}
    with server.http.stream("POST", f"v2/models/{MODEL}/generate_stream", json=body) as answer:
        assert len(first_events(answer, 3)) >= 3
    server.idle()


def test_the_load_is_told_to_who_asks(server: Server) -> None:
    body = {"text_input": "a", "max_tokens": 1}
    assert "endpoint-load-metrics" not in post(server, body).headers
    told = post(server, body, **{"endpoint-load-metrics-format": "json"}).headers["endpoint-load-metrics"]
    metrics = json.loads(told.removeprefix("JSON "))["named_metrics"]
    assert metrics["max_token_capacity"] > 0
    assert 0 <= metrics["kv_cache_utilization"] <= 1
    told = post(server, body, **{"endpoint-load-metrics-format": "text"}).headers["endpoint-load-metrics"]
    assert told.startswith("TEXT named_metrics.kv_cache_utilization=0.")
    assert "endpoint-load-metrics" not in post(server, body, **{"endpoint-load-metrics-format": "x"}).headers


def test_ids_are_echoed_and_empty_ones_are_none(server: Server) -> None:
    assert post(server, {"text_input": "a", "max_tokens": 1, "id": "x"}).json()["id"] == "x"
    assert "id" not in post(server, {"text_input": "a", "max_tokens": 1, "id": ""}).json()


def test_a_hundred_at_once(server: Server) -> None:
    def ask(number: int) -> None:
        body = {"text_input": f"number {number}", "max_tokens": 3, "id": str(number)}
        answer = post(server, body, path="generate_stream" if number % 2 else "generate")
        body = events(answer)[0] if number % 2 else answer.json()
        assert body["id"] == str(number)
        assert body["text_output"].startswith(f"number {number}")

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(100)))
    server.idle()
