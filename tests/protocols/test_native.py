"""The bodies and events of nbgen's own API."""

import json
from typing import Any

import msgspec
import pytest

from nbgen.engine_state import LoadProgress
from nbgen.errors import InvalidRequest, Unavailable
from nbgen.media_types import MAX_MEDIA
from nbgen.messages import AnswerPart, LogprobOptions, TokenLogprobs, ToolCall
from nbgen.protocols import native
from nbgen.sse import Decoder

PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}

TURN = {"role": "assistant", "content": "a"}


def called(arguments: Any) -> dict[str, Any]:
    return {"function": {"name": "f", "arguments": arguments}}


def run(**fields: Any) -> native.RunBody:
    return native.parse_run(json.dumps(fields).encode())


def test_messages_or_a_prompt_become_a_request() -> None:
    chat = run(messages=[{"role": "user", "content": "hi"}], params={"max_new_tokens": 3}).request("r")[0]
    assert (chat.rid, chat.messages[0].content, chat.params.max_new_tokens) == ("r", "hi", 3)
    assert run(prompt="hi").request("r")[0].text == "hi"
    assert run(prompt="hi", params={"n": 0}).request("r")[0].params.n == 1
    told = run(messages=[{"role": "developer", "content": "be short"}, {"role": "user", "content": "hi"}])
    assert [message.role for message in told.request("r")[0].messages] == ["system", "user"]


def test_the_engine_knows_which_runs_are_streamed() -> None:
    assert [run(prompt="hi", stream=stream).request("r")[0].streamed for stream in (True, False)] == [True, False]


def test_calls_are_guided_by_the_functions_that_a_notebook_gives() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    request, _ = run(messages=[{"role": "user", "content": "hi"}], tools=[tool]).request("r")
    assert request.tools is not None
    assert (request.tools.guided, request.tools.strict, request.tools.required) == (True, [], False)


def test_parts_of_messages_and_media_of_a_prompt_become_media_of_the_request() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}
    sound = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
    content = [{"type": "text", "text": "a"}, part, {"type": "text", "text": "b"}, sound]
    request, media = run(messages=[{"role": "user", "content": content}]).request("r")
    assert [(each.type, each.text) for each in request.messages[0].content] == [
        ("text", "a"),
        ("image", ""),
        ("text", "b"),
        ("audio", ""),
    ]
    assert [(each.type, bytes(each.data)) for each in media] == [("image", b"hi"), ("audio", b"hi")]
    assert media[0].options == {"detail": "low"}
    request, beside = run(prompt="a", media=[part, sound]).request("r")
    assert (request.text, beside) == ("a", media)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"prompt": "a", "id": "no spaces"}, "id"),
        ({"prompt": "a", "chat": "x" * 129}, "chat"),
        ({"prompt": "a", "frame_ms": -1}, "frame_ms"),
        ({"prompt": "a", "frame_ms": 1001}, "frame_ms"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a" * (4 * 2**20 + 1)}, "prompt"),
        ({"messages": [{"role": "user", "content": "é" * 2**20}] * 2 + [{"role": "user", "content": "a"}]}, "prompt"),
        ({"messages": [TURN | {"reasoning_content": "a" * 2**22}]}, "prompt"),
        ({"messages": [TURN | {"tool_calls": [called("a" * 2**22)]}]}, "prompt"),
        ({"messages": [TURN | {"tool_calls": [called({"a": "a" * 2**22})]}]}, "prompt"),
        ({"messages": [{"role": "user", "content": "a"}] * 4097}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "media": [PART]}, "media"),
        ({"prompt": "a", "media": [PART] * (MAX_MEDIA + 1)}, "media"),
        ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"prompt": "a", "template_options": {"enable_thinking": False}}, "template_options"),
    ],
)
def test_a_bad_body_is_refused_by_the_name_of_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        run(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "A-z_0.9:" + "x" * 120},
        {"frame_ms": 1000},
        {"logprobs": 20},
        {"prompt": "a" * (4 * 2**20)},
        {"media": [PART] * MAX_MEDIA},
    ],
)
def test_what_reaches_a_limit_is_taken(fields: dict[str, Any]) -> None:
    taken = run(**{"prompt": "a"} | fields)
    assert {name: msgspec.to_builtins(getattr(taken, name)) for name in fields} == fields


def test_what_a_run_asks_for_beside_its_text() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    asked = {"adapter": "a", "logit_processor": "p", "prefix_ids": [5], "logprobs": 2}
    turns = [{"role": "user", "content": "hi"}]
    request, _ = run(messages=turns, tools=[tool], template_options={"enable_thinking": False}, **asked).request("r")
    assert (request.adapter, request.logit_processor, request.prefix_ids) == ("a", "p", [5])
    assert request.logprobs == LogprobOptions(top=2, text=True)
    assert request.template_options == {"enable_thinking": False}
    assert request.tools is not None
    assert (request.parts, request.thoughts) == (True, True)
    plain, _ = run(prompt="hi").request("r")
    assert (plain.parts, plain.tools, plain.logprobs, plain.logit_processor) == (False, None, None, None)
    assert plain.streamed


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="no_such"):
        run(prompt="a", no_such=1)
    with pytest.raises(InvalidRequest, match="no_such"):
        run(prompt="a", params={"no_such": 1}).request("r")


def test_subscribe_needs_something_to_follow() -> None:
    body = native.parse_subscribe(b'{"start": {"prompt": "a"}, "follow": {"x": 3}}')
    assert (body.start.prompt, body.follow) == ("a", {"x": 3})
    assert native.parse_subscribe(b'{"follow": {"x": 0}}').start is None
    most = {f"r{number}": 1 for number in range(512)}
    assert len(native.parse_subscribe(json.dumps({"follow": most}).encode()).follow) == 512
    too_many = json.dumps({"follow": most | {"more": 1}}).encode()
    no_id = b'{"follow": {"x\\nevent: y": 1}}'
    for bad in (
        b"{}",
        b'{"follow": {"x": -1}}',
        b'{"start": {}}',
        b'{"follow": {"x": 1}, "frame_ms": -1}',
        too_many,
        no_id,
    ):
        with pytest.raises(InvalidRequest):
            native.parse_subscribe(bad)


@pytest.mark.parametrize(
    ("start", "last", "offset"), [(None, None, 0), ("7", "r:3", 7), (None, "a:b:3", 3), (None, "12", 12)]
)
def test_a_reader_resumes_where_it_says(start: str | None, last: str | None, offset: int) -> None:
    assert native.parse_offset(start, last) == offset


def test_an_offset_is_a_number() -> None:
    for bad in ("-1", "x", "9" * 20):
        with pytest.raises(InvalidRequest):
            native.parse_offset(bad, None)


def test_events_carry_the_offset_to_resume_from() -> None:
    (event,) = Decoder().feed(native.event("delta", "r:1", 4, index=0, text="a\nb", tokens=1))
    assert (event.event, event.id) == ("delta", "r:1:4")
    assert json.loads(event.data) == {"run": "r:1", "seq": 4, "index": 0, "text": "a\nb", "tokens": 1}


def test_what_deltas_and_progress_carry() -> None:
    entry = TokenLogprobs(token=(-0.5, 7, "a"), top=[(-0.5, 7, "a"), (-2.0, 8, "b")])
    assert native.token_fields(entry) == [7, "a", -0.5, [[7, "a", -0.5], [8, "b", -2.0]], 0]
    assert native.token_fields(TokenLogprobs(token=(-0.5, 7, "a"), offset=3)) == [7, "a", -0.5, [], 3]
    call = ToolCall(id="1", name="f", arguments="{}")
    parts = [AnswerPart(reasoning="a"), AnswerPart(reasoning="b"), AnswerPart(tool_call=call)]
    calls = [{"id": "1", "name": "f", "arguments": "{}"}]
    assert native.part_fields(parts) == {"reasoning": "ab", "tool_calls": calls}
    assert native.part_fields([AnswerPart(content="a")]) == {}
    begun = [AnswerPart(tool_call_delta=ToolCall(id, "f", "{")) for id in "12"]
    deltas = [{"id": id, "name": "f", "arguments": "{"} for id in "12"]
    assert native.part_fields(begun) == {"tool_call_deltas": deltas}
    more = AnswerPart(tool_call_delta=ToolCall("2", "f", "}"))
    joined = {"id": "2", "name": "f", "arguments": "{}"}
    assert native.part_fields([*begun, more]) == {"tool_call_deltas": [deltas[0], joined]}
    told = native.part_fields([begun[0], AnswerPart(tool_call=call), begun[1]])
    assert told == {"tool_call_deltas": deltas[1:], "tool_calls": calls}
    cut = native.part_fields([begun[0], AnswerPart(tool_call=call, cut=True)])
    assert cut == {"tool_call_deltas": deltas[:1]}
    progress = LoadProgress(stage="weights", done=1, total=2)
    assert native.progress_fields(progress) == {"stage": "weights", "done": 1, "total": 2}


def test_an_error_says_its_status_and_whether_to_try_again() -> None:
    refused = json.loads(native.error_body(InvalidRequest("no", field="x")))
    assert refused == {"error": {"message": "no", "code": 400, "retryable": False, "field": "x"}}
    assert native.error_fields(Unavailable("later")) == {"message": "later", "code": 503, "retryable": True}
