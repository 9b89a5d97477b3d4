"""Anthropic's messages as a chat's turns, and the events of outputs, without a server."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest, from_status
from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, GenerateRequest, ToolCall
from nbgen.protocols.anthropic_answer import Answer, error_event
from nbgen.protocols.anthropic_blocks import as_object
from nbgen.protocols.anthropic_messages import parse_count, parse_message
from nbgen.protocols.sample import Sample
from nbgen.sampling_params import SamplingParams
from nbgen.sse import Decoder

PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
CALL = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "1", "content": content, **more}


def parsed(**fields: Any) -> GenerateRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_message(json.dumps(body).encode()).call.requests[0]


def turns(*messages: tuple[str, Any], **fields: Any) -> list[Any]:
    """Role, text, thoughts, calls and media of each turn."""
    said = [{"role": role, "content": content} for role, content in messages]
    request = parsed(messages=said, **fields)
    return [
        (turn.role, turn.text)
        + ((turn.reasoning,) if turn.reasoning else ())
        + tuple((call.id, call.name, call.arguments) for call in turn.tool_calls)
        + tuple(part.type for part in turn.content if not isinstance(turn.content, str) and part.type != "text")
        for turn in request.messages or ()
    ]


CALLED = ("assistant", [THOUGHT, text("so"), CALL])
TOLD = ("assistant", "so", "hm", ("1", "f", '{"a":1}'))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("user", "a"), ("user", [text("b")])], [("user", "a\nb")]),
        ([("user", "a"), ("assistant", [text("b")]), ("assistant", "c"), ("user", "d")],
         [("user", "a"), ("assistant", "bc"), ("user", "d")]),
        ([("user", "a"), CALLED, ("user", [result("r")])], [("user", "a"), TOLD, ("tool", "r")]),
        ([("user", "a"), CALLED, ("user", [text("c"), result([text("r"), text("s")], is_error=True)])],
         [("user", "a"), TOLD, ("tool", "Error:\nr\ns"), ("user", "c")]),
        ([("user", "a"), CALLED, ("user", [result([PIXEL, text("r")]), text("c")])],
         [("user", "a"), TOLD, ("tool", "r"), ("user", "c", "image")]),
        ([("user", "a"), CALLED, ("user", [{"type": "tool_result", "tool_use_id": "1"}])],
         [("user", "a"), TOLD, ("tool", "")]),
        ([("user", [PIXEL, text("a")])], [("user", "a", "image")]),
        ([("user", "a"), ("assistant", [{"type": "redacted_thinking", "data": "x"}, text("b")]), ("user", "c")],
         [("user", "a"), ("assistant", "b"), ("user", "c")]),
        # Instructions: those in the middle belong to the turn before them, which is no answer.
        ([("system", "be"), ("user", "a"), ("system", "brief")], [("system", "be"), ("user", "a\nbrief")]),
        ([("user", "a"), CALLED, ("user", [result("r")]), ("system", "brief")],
         [("user", "a"), TOLD, ("tool", "r\nbrief")]),
        ([("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d")],
         [("user", "a"), ("assistant", "b"), ("user", "c\nd")]),
        ([("user", "a"), ("assistant", "")], [("user", "a")]),
        ([("user", "a"), ("assistant", ""), ("user", "b")], [("user", "a\nb")]),
    ],
)  # fmt: skip
def test_messages_are_the_turns_of_a_chat(messages: list[Any], expected: list[Any]) -> None:
    assert turns(*messages) == expected


def test_the_systems_turn_has_nothing_of_anthropics_accounts() -> None:
    blocks = [text("x-anthropic-billing-header: cc_version=2.1; cch=3f1a"), text("be"), text("brief")]
    assert turns(("user", "a"), system=blocks) == [("system", "be\nbrief"), ("user", "a")]
    assert turns(("user", "a"), system=blocks[:1]) == [("user", "a")]


def test_an_answer_goes_on_where_the_last_message_is_the_models() -> None:
    asked = {"role": "user", "content": "a"}
    assert parsed(messages=[asked, {"role": "assistant", "content": "It is"}]).continue_final
    assert not parsed(messages=[asked, {"role": "assistant", "content": ""}]).continue_final
    body = {"model": "m", "messages": [asked, {"role": "assistant", "content": "It is"}]}
    count = parse_count(json.dumps(body).encode())
    assert (count.continue_final, count.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
         {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
         {"enable_thinking": False, "thinking": False, "reasoning_effort": "max"}),
    ],
)  # fmt: skip
def test_templates_are_told_whether_to_think(fields: dict[str, Any], told: dict[str, Any]) -> None:
    assert parsed(**fields).template_options == told


def test_options_are_the_engines() -> None:
    schema, tool = {"type": "object"}, {"name": "f", "input_schema": {"type": "object"}, "cache_control": {}}
    examples = [{"a": 1}]
    request = parsed(
        stop_sequences=["x"],
        top_k=3,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        tools=[tool | {"input_examples": examples, "type": "custom", "eager_input_streaming": True}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        stream=True,
    )
    assert (request.params.stop, request.params.top_k, request.params.max_new_tokens) == (("x",), 3, 9)
    assert json.loads(request.params.json_schema or "") == schema
    (shown,) = request.tools.tools
    assert shown["function"]["parameters"] == schema | {"examples": examples}
    assert (request.tools.required, request.tools.parallel, request.streamed) == (True, False, True)
    assert request.rid.startswith("msg_")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'.*input_schema"),
        ({"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, r"`tools\[0\].defer_loading`"),
        ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "g"}}, "'g', which"),
        ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool"}}, "names none"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "'a b'"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "`mcp_servers` is not supported"),
        ({"thread": {"type": "create"}}, "`thread` is not supported"),
        ({"container": "c"}, "`container` is not supported"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 9}}}, "`output_config.task_budget`"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "`context_management` is"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
         r"messages\[0\].content\[0\].type: Invalid value 'document'; content is text, image"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
         "source.type: Invalid value 'file'"),
        ({"messages": [{"role": "user", "content": [PIXEL | {"source": PIXEL["source"] | {"data": "?"}}]}]},
         "`source`: neither base64"),
        ({"messages": [{"role": "user", "content": [CALL]}]}, "of the role user has no tool_use"),
        ({"messages": [{"role": "assistant", "content": [result("r")]}]}, "of the role assistant has no tool_result"),
        ({"messages": [{"role": "tool", "content": "a"}]}, r"messages\[0\].role: Invalid .* 'tool'"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [CALL]}]}, "tool_result of"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": None}, "max_tokens"),
        ({"model": None}, "model"),
        ({"stop_sequences": ["x"] * 40}, "stop_sequences must be at most 32"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type: Invalid .* 'sometimes'"),
        ({"temperature": "hot"}, "temperature"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parsed(**fields)


OUTPUTS = [
    GenerateOutput(rid="r", parts=[AnswerPart(reasoning="h")], token_ids=(1,), prompt_tokens=9, cached_tokens=4),
    GenerateOutput(rid="r", parts=[AnswerPart(reasoning="m"), AnswerPart(content="ye")], token_ids=(2, 3)),
    GenerateOutput(rid="r", parts=[AnswerPart(content="s"), AnswerPart(tool_call=ToolCall("1", "f", '{"b":\n1}'))]),
    GenerateOutput(rid="r", parts=[]),
    GenerateOutput(rid="r", parts=[AnswerPart(tool_call_delta=ToolCall("2", "g", each)) for each in ('{"a"', ": ")]),
    GenerateOutput(
        rid="r",
        parts=[
            AnswerPart(tool_call_delta=ToolCall("2", "g", "1")),
            AnswerPart(tool_call=ToolCall("2", "g", '{"a": 1}')),
        ],
        completion_tokens=7,
        finish_reason=FinishReason("stop"),
    ),
]
CONTENT = [
    {"type": "thinking", "thinking": "hm", "signature": "msg_1"},
    {"type": "text", "text": "yes"},
    {"type": "tool_use", "id": "1", "name": "f", "input": {"b": 1}},
    {"type": "tool_use", "id": "2", "name": "g", "input": {"a": 1}},
]


def answered(outputs: list[GenerateOutput], thoughts: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """The message of these outputs, and the events of a stream that is told one after the other."""
    asked = GenerateRequest(rid="msg_1", params=SamplingParams(max_new_tokens=9))
    answer, sample, told = Answer(asked, "m", thoughts=thoughts), Sample(), b""
    for output in outputs:
        sample.add(output)
        told += answer.chunk(sample)
    events = Decoder().feed(told + answer.end(sample))
    assert all(json.loads(event.data)["type"] == event.event for event in events)
    return json.loads(answer.whole(sample)), [json.loads(event.data) for event in events]


def put_together(events: list[Any]) -> dict[str, Any]:
    """The message that such events build, as clients do; between a block's start and stop there is nothing else."""
    start, *between, delta, stop = events
    message = start["message"]
    for event in between:
        match event["type"].removeprefix("content_block_"), event.get("delta"):
            case "start", None:
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"] | {"open": "", "json": ""})
            case "delta", {"type": "input_json_delta", "partial_json": new}:
                message["content"][-1]["json"] += new
            case "delta", {"type": kind, **fields}:
                (name, new), *_ = fields.items()
                assert kind == f"{name}_delta"
                message["content"][-1][name] += new
            case "stop", None:
                block = message["content"][-1]
                del block["open"]
                if written := block.pop("json"):
                    block["input"] = json.loads(written)
    assert not any("open" in block for block in message["content"])
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    return message | delta["delta"] | {"usage": delta["usage"]}


def test_a_message_is_the_same_however_it_comes() -> None:
    whole, events = answered(OUTPUTS)
    assert (whole["content"], whole["stop_reason"], whole["stop_sequence"]) == (CONTENT, "tool_use", None)
    tokens = {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}
    assert whole["usage"] == {**tokens, "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 1}}
    assert put_together(events) == whole
    assert events[0]["message"]["usage"].items() >= tokens.items()
    assert put_together(answered([sum_of(OUTPUTS)])[1])["content"] == CONTENT


def sum_of(outputs: list[GenerateOutput]) -> GenerateOutput:
    """All of them at once, as a reader who was slow is told."""
    parts = [part for output in outputs for part in output.parts or ()]
    more = {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 7}
    return GenerateOutput(rid="r", parts=parts, finish_reason=FinishReason("stop"), **more)


def test_thoughts_that_are_left_out_are_signed() -> None:
    whole, events = answered(OUTPUTS, thoughts=False)
    assert whole["content"] == [CONTENT[0] | {"thinking": ""}, *CONTENT[1:]]
    assert put_together(events) == whole


CUT = AnswerPart(tool_call=ToolCall("1", "f", '{"b": [1'), cut=True)


@pytest.mark.parametrize(
    ("parts", "told"),
    [([CUT], []), ([AnswerPart(tool_call_delta=ToolCall("1", "f", '{"b"')), CUT], ['{"b"', ": [1"])],
)
def test_a_call_that_is_cut_is_none_and_told_as_far_as_it_was(parts: list[AnswerPart], told: list[str]) -> None:
    reason = FinishReason(type="length", length=9)
    outputs = [GenerateOutput(rid="r", parts=[part]) for part in parts]
    whole, events = answered([*outputs, GenerateOutput(rid="r", parts=[], finish_reason=reason)])
    assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")
    assert [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"] == told


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason("stop", matched=5), ("end_turn", None)),
        (FinishReason("stop", matched="x"), ("stop_sequence", "x")),
        (FinishReason("length", length=9), ("max_tokens", None)),
        (FinishReason("length", length=8), ("model_context_window_exceeded", None)),
        (FinishReason("abort", message="Abort"), ("max_tokens", None)),
    ],
)
def test_why_an_answer_ended(reason: FinishReason, told: tuple[str, str | None]) -> None:
    whole, events = answered([GenerateOutput(rid="r", text="a", finish_reason=reason)])
    assert (whole["stop_reason"], whole["stop_sequence"]) == told
    assert whole["content"] == [{"type": "text", "text": "a"}]
    assert put_together(events) == whole


@pytest.mark.parametrize(
    ("written", "read"),
    [("", {}), ('{"a": 1}', {"a": 1}), ("[1]", {"arguments": "[1]"}), ('{"a"', {"arguments": '{"a"'}),
     ('{"a": NaN}', {"arguments": '{"a": NaN}'}), ("[" * 5000, {"arguments": "[" * 5000})],
)  # fmt: skip
def test_arguments_are_an_object_whatever_the_model_wrote(written: str, read: dict[str, Any]) -> None:
    assert json.loads(as_object(written)) == read


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
     (404, "not_found_error"), (409, "invalid_request_error"), (413, "request_too_large"), (500, "api_error"),
     (503, "overloaded_error")],
)  # fmt: skip
def test_errors_have_the_type_that_clients_know(status: int, kind: str) -> None:
    (event,) = Decoder().feed(error_event(from_status(status, "why"), "req_1"))
    told = {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "req_1"}
    assert (event.event, json.loads(event.data)) == ("error", told)
