"""`/generate` against a real engine: single, batch, streams, errors, and callers who leave."""

import http.client
import json
import re
import threading
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.server.conftest import BUSY, PATIENCE, Server, events, first_events, slow_reader, wait_for

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


def generate(server: Server, **body: Any) -> Any:
    answer = server.http.post("generate", json={"sampling_params": GREEDY, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server: Server, **body: Any) -> list[dict[str, Any]]:
    found = events(server.http, "POST", "generate", json={"sampling_params": GREEDY, "stream": True, **body})
    assert found[-1].data == "[DONE]"
    return [json.loads(event.data) for event in found[:-1]]


def test_a_single_prompt_answers_an_object(server: Server) -> None:
    answer = generate(server, text="hello", rid="one")
    assert answer["meta_info"]["id"] == "one"
    assert answer["meta_info"]["prompt_tokens"] == 5
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 8
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 8}


def test_an_empty_stop_string_matches_at_once(server: Server) -> None:
    answer = generate(server, text="hello", sampling_params={**GREEDY, "stop": ""})
    assert (answer["text"], len(answer["output_ids"])) == ("", 1)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": ""}


def test_put_is_post_and_the_same_prompt_gives_the_same_text(server: Server) -> None:
    first = generate(server, text="hello")
    again = server.http.put("generate", json={"text": "hello", "sampling_params": GREEDY}).json()
    assert again["text"] == first["text"]


def test_a_stream_ends_in_what_the_whole_answer_is(server: Server) -> None:
    long = {"text": "hello", "sampling_params": {**GREEDY, "max_new_tokens": 200}}
    whole, streamed = generate(server, **long), chunks(server, **long)
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(streamed))
    assert streamed[-1]["text"] == whole["text"]
    assert streamed[-1]["output_ids"] == whole["output_ids"]
    assert "index" not in streamed[-1]


def test_a_stream_is_there_before_its_end(server: Server) -> None:
    """However late it is read: the whole takes many seconds."""
    body = {"text": "hello", "sampling_params": BUSY, "stream": True}
    with server.http.stream("POST", "generate", json=body) as answer:
        found = [json.loads(event.data) for event in first_events(answer, 2)]
    assert all(chunk["output_ids"] and not chunk["meta_info"]["finish_reason"] for chunk in found[:2])
    server.idle()


def test_a_streamed_batch_tells_the_places_apart(server: Server) -> None:
    streamed = chunks(server, text=["one", "two"])
    final = [chunk for chunk in streamed if chunk["meta_info"]["finish_reason"]]
    assert sorted(chunk["index"] for chunk in final) == [0, 1]


def test_one_bad_prompt_refuses_the_batch(server: Server) -> None:
    answer = server.http.post("generate", json={"text": ["x", "y" * 20_000], "sampling_params": BUSY})
    assert answer.status_code == 400
    server.idle()


@pytest.mark.parametrize(
    ("route", "prompt", "unset", "asked"),
    [
        ("generate", {"text": "a"}, [None, {"enabled": False}], {"watermark": {"enabled": True}}),
        ("generate", {"text": "a"}, [None, False, [False]], {"return_sampling_mask": True}),
        ("generate", {"text": "a"}, [None], {"sampling_logprobs_mode": "selected"}),
        ("generate", {"text": "a"}, [None], {"max_thinking_tokens": 8}),
        ("generate", {"text": "a"}, [None, False], {"return_entropy": True}),
        ("generate", {"text": "a"}, [None, {}], {"mm_processor_kwargs": {"max_pixels": 9}}),
        ("v1/completions", {"prompt": "a"}, [None, {"enabled": False}], {"watermark": {"enabled": True}}),
        ("v1/completions", {"prompt": "a"}, [None, False], {"return_sampling_mask": True}),
        ("v1/completions", {"prompt": "a"}, [None, False], {"return_meta_info": True}),
        ("v1/completions", {"prompt": "a"}, [None, False], {"return_output_ids_in_sglext": True}),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name_and_not_passed_over(
    server: Server, route: str, prompt: dict[str, Any], unset: list[Any], asked: dict[str, Any]
) -> None:
    (name,) = asked
    for each in unset:
        assert server.http.post(route, json=prompt | {name: each}).status_code == 200
    refused = server.http.post(route, json=prompt | asked)
    assert refused.status_code == 400
    assert f"`{name}` is not supported by this server: leave it out" in refused.json()["error"]["message"]


def test_an_id_in_flight_is_refused_and_free_afterwards(server: Server) -> None:
    with server.http.stream(
        "POST", "generate", json={"text": "a", "rid": "dup", "stream": True, "sampling_params": BUSY}
    ):
        answer = server.http.post("generate", json={"text": "a", "rid": "dup"})
        assert answer.status_code == 400
        assert "Duplicate request ID detected: dup" in answer.json()["error"]["message"]
    again = {"text": "a", "rid": "dup", "sampling_params": GREEDY}
    wait_for(lambda: server.http.post("generate", json=again).status_code == 200, "the id is free again")


def test_abort_ends_exactly_the_named_request(server: Server) -> None:
    answers: list[httpx.Response] = []
    body = {"text": "a", "rid": "to-abort", "sampling_params": BUSY}
    server.idle()
    caller = threading.Thread(target=lambda: answers.append(server.http.post("generate", json=body)))
    caller.start()
    wait_for(lambda: (server.model()["status"] or {}).get("running"), "the request runs")
    for other in ({"rid": "to-"}, {"rid": ""}, {"rid": "*"}, {}, {"abort_all": False}):
        assert server.http.post("abort_request", json=other).status_code == 200
    assert caller.is_alive()
    done = server.http.post("abort_request", json={"rid": "to-abort"})
    assert (done.status_code, done.content) == (200, b"")
    caller.join(PATIENCE)
    assert answers[0].status_code == 200
    meta = answers[0].json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    assert meta["completion_tokens"] == len(answers[0].json()["output_ids"])


def test_abort_all_ends_a_batch_with_samples(server: Server) -> None:
    answers: list[httpx.Response] = []
    body = {"text": ["a", "b"], "sampling_params": {**BUSY, "n": 2}}
    server.idle()
    caller = threading.Thread(target=lambda: answers.append(server.http.post("generate", json=body)))
    caller.start()
    wait_for(lambda: (server.model()["status"] or {}).get("running"), "the request runs")
    server.http.post("abort_request", json={"abort_all": True})
    caller.join(PATIENCE)
    assert [item["meta_info"]["finish_reason"]["type"] for item in answers[0].json()] == ["abort"] * 4
    server.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_who_leaves_aborts(server: Server, stream: bool) -> None:
    body = {"text": "a", "sampling_params": BUSY, "stream": stream}
    server.idle()
    before = server.generated()
    server.left("generate", body)
    server.idle()
    assert 0 < server.generated() - before < BUSY["max_new_tokens"]


def test_model_info(server: Server) -> None:
    for path in ("model_info", "get_model_info"):
        info = server.http.get(path).json()
        assert info["model_path"] == server.model()["name"]
        assert info["model_type"] == "llama"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("generate", {"input_ids": [[5] * 100] * 64, "return_logprob": True, "top_logprobs_num": 1000}),
        ("generate", {"text": ["x"] * 1024, "return_hidden_states": True}),
        ("v1/completions", {"prompt": ["x" * 100] * 1024, "echo": True, "logprobs": 20}),
    ],
)
def test_the_prompts_of_one_call_share_what_one_answer_holds(server: Server, route: str, body: dict[str, Any]) -> None:
    options = {"max_tokens": 200} if route == "v1/completions" else {"sampling_params": {"max_new_tokens": 200}}
    answer = server.http.post(route, json=body | options)
    assert answer.status_code == 400, answer.text[:300]
    words = r"each of (64|1024) requests in one call gets at most \d+, more if they are fewer: ask for fewer"
    assert re.search(words, answer.text), answer.text[:300]


def test_logprobs_are_the_same_streamed_and_whole_and_join_to_the_text(server: Server) -> None:
    asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    whole = generate(server, text="hello", **asked)
    meta = whole["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == whole["output_ids"]
    assert "".join(entry[2] for entry in meta["input_token_logprobs"]) == "hello"
    assert meta["output_token_logprobs"] == [top[0] for top in meta["output_top_logprobs"]], (
        "greedy takes the likeliest"
    )
    last = chunks(server, text="hello", **asked)[-1]["meta_info"]
    for name in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"):
        assert last[name] == meta[name]
    batch = generate(server, text=["a", "hello"], return_logprob=[False, True])
    assert "output_token_logprobs" not in batch[0]["meta_info"]
    assert batch[1]["meta_info"]["input_token_logprobs"] == []
    refused = server.http.post("generate", json={"text": "a", "return_logprob": True, "token_ids_logprob": [10**6]})
    assert (refused.status_code, "out-of-vocabulary" in refused.text) == (400, True)


def test_a_prefix_is_cached_until_it_is_flushed_and_never_across_salts(server: Server) -> None:
    prompt = "a prompt of some length, for the cache"

    def cached(**body: Any) -> int:
        return generate(server, text=prompt, **body)["meta_info"]["cached_tokens"]

    server.idle()
    assert [cached(), cached()] == [0, len(prompt) - 1]
    assert [cached(cache_salt="x"), cached(extra_key="x"), cached(cache_salt="x")] == [0, 0, len(prompt) - 1]
    assert server.http.get("flush_cache").text.startswith("Cache flushed.")
    assert [cached(), cached()] == [0, len(prompt) - 1]
    assert server.http.post("reset_prefix_cache").status_code == 200
    assert cached() == 0
    assert server.http.get("reset_prefix_cache").status_code == 405
    refused = server.http.post("reset_prefix_cache?reset_running_requests=true")
    assert (refused.status_code, "`reset_running_requests` is not supported" in refused.text) == (400, True)
    busy = {"prompt": "a", "params": BUSY, "id": "busy", "attached": False}
    with server.http.stream("POST", "api/v1/runs", json=busy) as answer:
        first_events(answer, 1)
    assert server.http.get("flush_cache").status_code == 400
    server.http.post("api/v1/runs/busy/cancel")


def test_the_prompts_ids_come_back_where_asked(server: Server) -> None:
    whole = generate(server, text=["ab", "cde"], return_prompt_token_ids=True)
    assert [len(item["prompt_token_ids"]) for item in whole] == [2, 3]
    ids = whole[1]["prompt_token_ids"]
    streamed = chunks(server, input_ids=ids, return_prompt_token_ids=True)
    assert all(chunk["prompt_token_ids"] == ids for chunk in streamed)
    assert "prompt_token_ids" not in generate(server, text="ab")


def test_a_reader_who_pauses_gets_all_of_it_in_fewer_events(server: Server) -> None:
    tokens, wide = 40, {"return_logprob": True, "token_ids_logprob": [5] * 1024}  # 30 MB, since each event has all
    body = {"text": "a", "stream": True, **wide, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    with slow_reader(server, body) as reader:
        answer = http.client.HTTPResponse(reader)
        answer.begin()
        server.idle()
        lines = answer.read().split(b"\n\n")
    found = [json.loads(line.removeprefix(b"data: "))["meta_info"] for line in lines if line.startswith(b"data: {")]
    counts = [meta["completion_tokens"] for meta in found]
    assert counts == sorted(set(counts)), "no event twice"
    assert len(counts) < tokens
    assert counts[-1] == len(found[-1]["output_token_logprobs"]) == tokens
    assert found[-1]["finish_reason"]["type"] == "length"
