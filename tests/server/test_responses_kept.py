"""Which responses are kept, and how long, without a server."""

import json
import time
from typing import Any

import msgspec
import pytest

from nbgen.errors import InternalError, InvalidRequest, NotFound
from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest, TokenLogprobs
from nbgen.protocols.openai import Call
from nbgen.protocols.responses import ResponseCall, parse_response
from nbgen.protocols.responses_body import Body
from nbgen.protocols.responses_items import input_items, json_size
from nbgen.server import responses
from nbgen.server.responses import POINTER_BYTES, Response, Responses
from nbgen.server.runs import Run

END = GenerateOutput(rid="r", text="yes", token_ids=(1,), finish_reason=FinishReason("stop"))


def add(kept: Responses, id: str, *, background: bool = False, size: int = 1) -> Run:
    items = input_items(id)
    request = GenerateRequest(rid=f"run-{id}", text="")
    asked = ResponseCall(id, Body(input=id, background=background), Call([request], chat=True), items, items, size=size)
    run = Run(request)
    kept.add(Response(asked, "m", run), run)
    return run


def test_a_response_ends_with_its_run_and_can_be_continued() -> None:
    kept = Responses()
    run = add(kept, "resp_a")
    assert kept.get("resp_a").body()["status"] == "queued"
    with pytest.raises(InvalidRequest, match="not ended"):
        kept.history("resp_a")
    run.add(END)
    question, answer = kept.history("resp_a")
    assert answer["content"][0]["text"] == "yes"
    assert kept.item(answer["id"]) == answer
    assert kept.item(question["id"]) == question
    assert kept.get("resp_a").body()["status"] == "completed"
    kept.delete("resp_a")
    with pytest.raises(InvalidRequest, match="no item"):
        kept.item(answer["id"])


def test_it_was_completed_when_its_run_ended_however_late_it_is_read() -> None:
    kept = Responses()
    run = add(kept, "resp_a", background=True)
    run.created -= 100
    run.started -= 90
    run.add(END)
    response = kept.get("resp_a")
    assert 8 <= time.time() - response.body()["completed_at"] < 30
    told = response.answer().end(run.outputs, run.samples[0], None, run.ended_at)
    assert f'"completed_at":{response.body()["completed_at"]}'.encode() in told


def test_what_is_deleted_before_its_end_is_not_there_after_it() -> None:
    kept = Responses()
    run = add(kept, "resp_a")
    (question,) = kept.get("resp_a").input
    kept.delete("resp_a")
    run.add(END)
    with pytest.raises(InvalidRequest, match="no item"):
        kept.item(question["id"])


def test_the_oldest_that_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "KEEP_RESPONSES", 2)
    kept = Responses()
    runs = {id: add(kept, id) for id in ("resp_a", "resp_b", "resp_c")}
    for id in ("resp_b", "resp_c", "resp_a"):
        runs[id].add(END)
    with pytest.raises(NotFound, match="no response 'resp_b'"):
        kept.get("resp_b")
    assert [kept.get(id).id for id in ("resp_a", "resp_c")] == ["resp_a", "resp_c"]


def test_large_ones_are_forgotten_sooner_but_for_the_newest() -> None:
    kept = Responses()
    for id in ("resp_a", "resp_b"):
        add(kept, id, size=responses.KEEP_BYTES).add(END)
    with pytest.raises(NotFound):
        kept.get("resp_a")
    assert kept.get("resp_b").body()["status"] == "completed"


@pytest.mark.parametrize("background", [False, True])
def test_an_answer_counts_with_its_log_probabilities(background: bool) -> None:
    kept = Responses()
    request = GenerateRequest(rid="run-resp_a", text="")
    body, run = Body(input="a", background=background, top_logprobs=20), Run(request)
    kept.add(Response(ResponseCall("resp_a", body, Call([request], chat=True), [], []), "m", run), run)
    entry = TokenLogprobs((-1.0, 1, "yes"), top=[(-1.0 / 3, 1, "yes")] * 20)
    run.add(msgspec.structs.replace(END, logprobs=[entry] * 100))
    (item,) = kept.get("resp_a").body()["output"]
    assert kept.size == len(written := msgspec.json.encode(item)) * (1 + background)
    assert len(json.loads(written)["content"][0]["logprobs"]) == 100
    assert isinstance(item["content"][0]["logprobs"], msgspec.Raw), "lists would take four times as much"


def test_what_several_responses_hold_counts_once_for_as_long_as_one_of_them_is_kept() -> None:
    def respond(**body: Any) -> str:
        asked = parse_response(json.dumps(body).encode(), kept)
        run = Run(asked.call.requests[0])
        kept.add(Response(asked, "m", run), run)
        run.add(END)
        return asked.id

    kept = Responses()
    chain = [respond(input="x" * 10_000, instructions="y" * 5000)]
    assert 15_000 < kept.size < 17_000
    for holds in range(5):
        (image, *_) = kept.history(chain[0])
        again = [{"type": "item_reference", "id": image["id"]}] if holds % 2 else "on"
        chain.append(respond(input=again, previous_response_id=chain[-1]))
    assert 15_000 < kept.size < 26_000, "each has a body and an answer of its own"
    for id in chain[:-1]:
        kept.delete(id)
    assert 10_000 < kept.size < 17_000, "the last one holds all that it continues"
    kept.delete(chain[-1])
    assert kept.size == 0


def test_what_was_said_before_counts_as_it_was_measured_when_the_call_was_read() -> None:
    kept = Responses()
    conversation = kept.conversations.create({}, input_items([{"role": "user", "content": "x"}] * 3))
    asked = parse_response(json.dumps({"input": "a", "conversation": conversation.id}).encode(), kept)
    assert asked.sizes == [json_size([item]) for item in asked.items]
    run, before = Run(asked.call.requests[0]), kept.size
    kept.add(Response(asked, "m", run), run, [1000, 2000, 3000, 4000])
    assert kept.size - before == 10_000 + asked.size + 3 * POINTER_BYTES, "it has a list of its own, too"


def test_an_error_is_kept_only_for_who_did_not_hear_of_it() -> None:
    kept = Responses()
    add(kept, "resp_a").fail(InternalError("gone"))
    add(kept, "resp_b", background=True).fail(InternalError("gone"))
    with pytest.raises(NotFound):
        kept.get("resp_a")
    body = kept.get("resp_b").body()
    assert (body["status"], body["error"]["message"]) == ("failed", "gone")
