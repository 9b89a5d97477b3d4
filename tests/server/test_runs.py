"""Runs of nbgen's own API: they outlive readers, replay from offsets, and share a stream."""

import json
import re
import time
import uuid
from typing import Any

import pytest

from tests.server.conftest import BUSY, Server, events, events_until, wait_for

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}


def new(**body: Any) -> dict[str, Any]:
    return {"prompt": "hello", "params": GREEDY, "id": uuid.uuid4().hex, **body}


def text(found: list[Any]) -> str:
    return "".join(json.loads(event.data)["text"] for event in found if event.event == "delta")


def test_a_streamed_run_tells_its_state_its_text_and_its_end(server: Server) -> None:
    body = new(chat="c1", messages=[{"role": "user", "content": "hi"}])
    del body["prompt"]
    found = events(server.http, "POST", "api/v1/runs", json=body)
    assert found[0].event == "run"
    assert found[-1].event == "done"
    done = json.loads(found[-1].data)
    assert done["usage"]["completion_tokens"] == 8
    assert done["finish_reason"] == {"type": "length", "length": 8}
    assert done["ttft_s"] > 0
    assert all(event.id == f"{body['id']}:{json.loads(event.data)['seq']}" for event in found)
    snapshot = server.http.get(f"api/v1/runs/{body['id']}").json()
    assert (snapshot["state"], snapshot["text"], snapshot["seq"]) == ("done", text(found), done["seq"])


def test_without_a_stream_the_answer_is_the_snapshot(server: Server) -> None:
    answer = server.http.post("api/v1/runs", json=new(stream=False, params={**GREEDY, "n": 2})).json()
    assert answer["state"] == "done"
    assert len(answer["texts"]) == 2
    assert answer["params"]["max_new_tokens"] == 8


def test_a_run_replays_from_any_offset_told(server: Server) -> None:
    body = new(params={**GREEDY, "n": 2, "temperature": 1})
    whole = events(server.http, "POST", "api/v1/runs", json=body)
    for position, event in enumerate(whole):
        seq = json.loads(event.data)["seq"]
        replay = events(server.http, "GET", f"api/v1/runs/{body['id']}/events", params={"from": seq})
        assert text(replay) == text(whole[position + 1 :]), "nothing lost, nothing twice"
    resumed = events(server.http, "GET", f"api/v1/runs/{body['id']}/events", headers={"Last-Event-ID": whole[2].id})
    assert text(resumed) == text(whole[3:])


def test_the_same_id_is_the_same_run(server: Server) -> None:
    body = new(stream=False)
    first, again = (server.http.post("api/v1/runs", json=body).json() for _ in range(2))
    assert first["created"] == again["created"]


def test_a_detached_run_outlives_its_reader_and_cancel_ends_it(server: Server) -> None:
    body = new(params=BUSY, attached=False)
    with server.http.stream("POST", "api/v1/runs", json=body) as answer:
        events_until(answer, lambda found: found[-1].event == "delta")
    path = f"api/v1/runs/{body['id']}"
    before = server.http.get(path).json()
    assert before["state"] == "running"
    wait_for(lambda: server.http.get(path).json()["seq"] > before["seq"], "the run goes on")
    assert server.http.post(f"{path}/cancel").status_code == 200
    ended = wait_for(lambda: (s := server.http.get(path).json())["state"] == "done" and s, "the run ended")
    assert ended["finish_reason"]["type"] == "abort"
    assert server.http.post(f"{path}/cancel").json()["state"] == "done"
    server.idle()


@pytest.mark.parametrize("stream", [False, True])
def test_an_attached_run_ends_with_its_reader(server: Server, stream: bool) -> None:
    body = new(params=BUSY, stream=stream)
    server.left("api/v1/runs", body)
    path = f"api/v1/runs/{body['id']}"
    ended = wait_for(lambda: (s := server.http.get(path).json())["state"] == "done" and s, "the run ended")
    assert ended["finish_reason"]["type"] == "abort"


def test_one_stream_follows_many_runs(server: Server) -> None:
    first, second = new(), new()
    alone = server.http.post("api/v1/runs", json={**first, "stream": False}).json()["text"]
    found = events(
        server.http,
        "POST",
        "api/v1/subscribe",
        json={"start": second, "follow": {first["id"]: 0, "unknown": 4}, "frame_ms": 16},
    )
    by_run = {
        id: [e for e in found if json.loads(e.data)["run"] == id] for id in (first["id"], second["id"], "unknown")
    }
    assert text(by_run[first["id"]]) == text(by_run[second["id"]]) == alone
    (missing,) = by_run["unknown"]
    assert json.loads(missing.data)["error"]["code"] == 404


def test_frames_join_deltas(server: Server) -> None:
    params = {**GREEDY, "max_new_tokens": 200}
    started = time.monotonic()
    found = events(server.http, "POST", "api/v1/runs", json=new(params=params, frame_ms=1000))
    seconds = time.monotonic() - started
    deltas = [json.loads(event.data) for event in found if event.event == "delta"]
    assert sum(delta["tokens"] for delta in deltas) == 200
    assert len(deltas) < 3 + seconds


def test_a_chat_is_its_newest_run(server: Server) -> None:
    chat = uuid.uuid4().hex
    assert server.http.get(f"api/v1/chats/{chat}").json() == {"chat": chat, "run": None, "messages": [], "turns": []}
    body = new(chat=chat, stream=False, messages=[{"role": "user", "content": "hi"}])
    del body["prompt"]
    answer = server.http.post("api/v1/runs", json=body).json()
    stored = server.http.get(f"api/v1/chats/{chat}").json()
    assert stored["run"]["run"] == body["id"]
    assert [m["role"] for m in stored["messages"]] == ["user", "assistant"]
    assert stored["messages"][1]["content"] == answer["text"]


def test_what_a_part_says_beside_its_own_type_is_passed_over(server: Server) -> None:
    chat = uuid.uuid4().hex
    part = {"type": "text", "text": "hi", "image_url": {"detail": "low"}, "video_url": "x" * 1000}
    body = {"chat": chat, "messages": [{"role": "user", "content": [part]}], "params": GREEDY, "stream": False}
    answer = server.http.post("api/v1/runs", json=body)
    assert answer.status_code == 200, answer.text
    stored = server.http.get(f"api/v1/chats/{chat}").json()["messages"][0]
    assert stored["content"] == answer.json()["messages"][0]["content"] == [{"type": "text", "text": "hi"}]


def test_another_answer_and_an_edited_question_are_branches(server: Server) -> None:
    chat, hi = uuid.uuid4().hex, [{"role": "user", "content": "hi"}]
    edited = [{"role": "user", "content": "ho"}]
    for messages in (hi, hi, edited):
        body = {"id": uuid.uuid4().hex, "chat": chat, "messages": messages, "params": GREEDY, "stream": False}
        assert server.http.post("api/v1/runs", json=body).json()["state"] == "done"
    stored = server.http.get(f"api/v1/chats/{chat}").json()
    assert [(turn["parent"], turn["role"]) for turn in stored["turns"]] == [
        (None, "user"),
        (0, "assistant"),
        (0, "assistant"),
        (None, "user"),
        (3, "assistant"),
    ]
    assert stored["messages"] == [*edited, {"role": "assistant", "content": stored["turns"][4]["content"]}]
    assert stored["turns"][4]["usage"]["completion_tokens"] == 8


def test_deltas_carry_what_the_model_thought_of_each_token(server: Server) -> None:
    found = events(server.http, "POST", "api/v1/runs", json=new(logprobs=3))
    deltas = [json.loads(event.data) for event in found if event.event == "delta"]
    tokens = [token for delta in deltas for token in delta["logprobs"]]
    assert len(tokens) == 8
    answer = "".join(delta["text"] for delta in deltas)
    for id, text, logprob, top, offset in tokens:
        assert answer[offset:].lstrip("\ufffd").startswith(text.strip("\ufffd")), "it is told where each token begins"
        assert (top[0][0], len(top)) == (id, 3), "greedy takes the likeliest"
        assert [entry[2] for entry in top] == sorted((entry[2] for entry in top), reverse=True)
        assert (top[0][1], top[0][2]) == (text, logprob)


def test_a_token_tells_where_in_the_text_it_begins(server: Server) -> None:
    """In a character that it goes on with, and else behind the broken one that is left."""

    def ids(text: str) -> list[int]:
        return server.http.post("tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]

    def start(before: list[int], token: int) -> int:
        params = {**GREEDY, "max_new_tokens": 1, "logit_bias": {str(token): 100.0}}
        body = new(logprobs=0, prefix_ids=before, params=params)
        found = [json.loads(each.data) for each in events(server.http, "POST", "api/v1/runs", json=body)]
        return next(token[-1] for each in found for token in each.get("logprobs", []))

    given, other = ids("é日🦊"), ids("a")[0]
    assert [start(given[:count], token) for count, token in enumerate(given)] == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert [start(given[:count], other) for count in range(len(given))] == [0, 1, 1, 2, 2, 2, 3, 3, 3]


def test_an_answer_goes_on_from_tokens_that_are_given(server: Server) -> None:
    whole = server.http.post("api/v1/runs", json=new(stream=False)).json()
    found = events(server.http, "POST", "api/v1/runs", json=new(logprobs=0))
    ids = [token[0] for event in found if event.event == "delta" for token in json.loads(event.data)["logprobs"]]
    rest = new(stream=False, prefix_ids=ids[:5], params={**GREEDY, "max_new_tokens": 3})
    answer = server.http.post("api/v1/runs", json=rest).json()
    assert (answer["text"], answer["prefix_ids"]) == (whole["text"], ids[:5])
    refused = server.http.post("api/v1/runs", json=new(stream=False, prefix_ids=[10**9]))
    assert (refused.status_code, "vocabulary" in refused.text) == (400, True)
    asked = {"stream": False, "params": {"max_new_tokens": 20, "regex": "[0-9]{5}[a-c]"}}
    given, other = server.http.post("tokenize", json={"prompt": ["123", "12a"]}).json()["tokens"]
    answer = server.http.post("api/v1/runs", json=new(**asked, prefix_ids=given)).json()
    assert re.fullmatch("123[0-9]{2}[a-c]", answer["text"]), answer
    refused = server.http.post("api/v1/runs", json=new(**asked, prefix_ids=other))
    assert (refused.status_code, "prefix_ids: the token" in refused.text) == (400, True), refused.text


def test_what_cannot_be_is_refused_in_words(server: Server) -> None:
    for body, status in (({}, 400), ({"prompt": "a", "x": 1}, 400), (new(params={"temperature": -1}), 400)):
        answer = server.http.post("api/v1/runs", json=body)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == status
    refused = server.http.post("api/v1/runs", json=new(prompt="x" * 20_000, stream=False))
    assert (refused.status_code, "context length" in refused.text) == (400, True)
    assert server.http.get("api/v1/runs/unknown").status_code == 404
    assert server.http.post("api/v1/runs/unknown/cancel").status_code == 404
    assert server.http.get("api/v1/runs/unknown/events", params={"from": "-1"}).status_code == 404


def test_hello_and_model_say_who_answers(server: Server) -> None:
    hello = server.http.get("api/v1/hello").json()
    assert hello["model"]["state"] == "ready"
    assert hello["server_id"] == json.loads(server.runtime_file.read_bytes())["server_id"]
    model = server.model()
    assert model["model"]["model_type"] == "llama"
    assert model["engine_pid"] == server.engine().pid
    assert model["status"]["blocks_free"] <= model["status"]["blocks_total"]
