"""SGLang's objects, chunks and four shapes of errors."""

import json
import time

import msgspec
import pytest

from nbgen.errors import EngineStopped, InvalidRequest, NbgenError, NotFound, Unauthorized
from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest, LogprobOptions, TokenLogprobs
from nbgen.protocols import sglang_answer
from nbgen.protocols.json_body import MalformedBody
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import ContractError, SchemaError
from nbgen.protocols.sglang_answer import Answer
from nbgen.sampling_params import SamplingParams
from nbgen.sse import Decoder

REQUEST = GenerateRequest(rid="r", text="x")
STOP = FinishReason(type="stop", matched="\n")


def output(text: str, *ids: int, total: int, reason: FinishReason | None = None) -> GenerateOutput:
    return GenerateOutput(
        rid="r", text=text, token_ids=list(ids), prompt_tokens=3, completion_tokens=total, finish_reason=reason
    )


def chunks(answer: Answer, *outputs: GenerateOutput) -> list[dict]:
    sample, events = Sample(), b""
    for step in outputs:
        sample.add(step)
        events += answer.chunk(sample, time.monotonic())
    return [json.loads(event.data) for event in Decoder().feed(events)]


def test_chunks_are_cumulative_and_the_last_is_complete() -> None:
    first, last = chunks(Answer(REQUEST), output("a", 1, total=1), output("b", 2, total=2, reason=STOP))
    assert (first["text"], first["output_ids"]) == ("a", [1])
    assert first["meta_info"]["finish_reason"] is None
    assert "e2e_latency" not in first["meta_info"]
    assert (last["text"], last["output_ids"]) == ("ab", [1, 2])
    assert last["meta_info"]["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert last["meta_info"]["e2e_latency"] >= 0
    assert last["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]
    assert "index" not in last


def test_an_interval_sends_the_first_token_at_once_then_waits() -> None:
    steps = [output("x", i, total=i) for i in range(1, 6)]
    sent = chunks(Answer(REQUEST, interval=3), *steps, output("", total=5, reason=STOP))
    assert [len(chunk["output_ids"]) for chunk in sent] == [1, 4, 5]


def test_nothing_is_sent_after_the_end_nor_without_news() -> None:
    done = output("a", 1, total=1, reason=STOP)
    assert len(chunks(Answer(REQUEST), done, done)) == 1


def test_a_place_in_a_list_is_told_in_streams_only() -> None:
    assert chunks(Answer(REQUEST, 2), output("a", 1, total=1))[0]["index"] == 2
    sample = Sample()
    sample.add(output("a", 1, total=1, reason=STOP))
    result = Answer(REQUEST, 2).result(sample, time.monotonic())
    assert "index" not in result
    assert result["meta_info"]["id"] == "r"
    assert set(result["meta_info"]) >= {
        "id",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "cached_tokens_details",
        "reasoning_tokens",
        "weight_version",
        "weight_versions",
        "num_retractions",
        "dp_rank",
        "e2e_latency",
        "response_sent_to_client_ts",
    }


def test_several_samples_have_ids_of_their_own() -> None:
    request = GenerateRequest(rid="r", text="x", params=SamplingParams(n=2))
    assert len({Answer(request, 0).id, Answer(request, 1).id, "r"}) == 3


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (FinishReason(type="length", length=4), {"type": "length", "length": 4}),
        (FinishReason(type="stop", matched=7), {"type": "stop", "matched": 7}),
        (
            FinishReason(type="abort", message="Abort in waiting queue"),
            {"type": "abort", "message": "Abort in waiting queue", "status_code": None, "err_type": None},
        ),
    ],
)
def test_finish_reasons(reason: FinishReason, shown: dict) -> None:
    (chunk,) = chunks(Answer(REQUEST), output("", total=0, reason=reason))
    assert chunk["meta_info"]["finish_reason"] == shown


@pytest.mark.parametrize("error", [SchemaError("m"), MalformedBody("m")])
def test_shape_a(error: NbgenError) -> None:
    body = json.loads(sglang_answer.error_body(error))
    assert body == {"object": "error", "message": "m", "type": "Bad Request", "param": None, "code": 400}


def test_shapes_b_c_and_d() -> None:
    assert json.loads(sglang_answer.error_body(ContractError("m"))) == {"error": "m"}
    assert json.loads(sglang_answer.error_body(InvalidRequest("m"))) == {"error": {"message": "m"}}
    shape_d = json.loads(sglang_answer.error_body(EngineStopped("m")))
    assert shape_d == {"object": "error", "message": "m", "type": "503", "param": None, "code": 503}
    assert json.loads(sglang_answer.error_body(Unauthorized("m")))["error"] == "Unauthorized"
    assert json.loads(sglang_answer.error_body(NotFound("m"))) == {"detail": "m"}


def test_an_error_in_a_stream_says_whether_to_try_again() -> None:
    (event,) = Decoder().feed(sglang_answer.error_event(EngineStopped("m")))
    assert json.loads(event.data)["error"] == {
        "message": "m",
        "type": "server_error",
        "code": 503,
        "retryable": True,
    }


def test_incremental_chunks_hold_what_is_new() -> None:
    logprob = [TokenLogprobs((-1.0, 1, None))]
    request = msgspec.structs.replace(REQUEST, logprobs=LogprobOptions())
    steps = [msgspec.structs.replace(output(text, 1, total=i), logprobs=logprob) for i, text in enumerate("abc", 1)]
    steps[-1] = msgspec.structs.replace(steps[-1], finish_reason=STOP)
    sent = chunks(Answer(request, incremental=True), *steps)
    assert [chunk["text"] for chunk in sent] == ["a", "b", "c"]
    assert [len(chunk["output_ids"]) for chunk in sent] == [1, 1, 1]
    assert [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in sent] == [1, 1, 1]
    assert [chunk["meta_info"]["output_token_logprobs_length"] for chunk in sent] == [1, 2, 3]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in sent] == [1, 2, 3]
