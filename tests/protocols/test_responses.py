"""The items of responses as a chat's turns, and the events of outputs, without a server."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from nbgen.errors import InternalError
from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, ToolCall
from nbgen.protocols.responses_answer import Answer, item_page
from nbgen.protocols.responses_body import Body
from nbgen.protocols.responses_items import chat_turns, in_parts, input_items
from nbgen.protocols.responses_query import Page
from nbgen.protocols.sample import Sample
from nbgen.sse import Decoder

CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "done"}]}
CALLED = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
TEXT = [{"type": "text", "text": "yes"}]
OUTPUTS = [
    GenerateOutput(rid="r", parts=[AnswerPart(reasoning="h")], token_ids=(1,)),
    GenerateOutput(rid="r", parts=[AnswerPart(reasoning="m"), AnswerPart(content="ye")], token_ids=(2, 3)),
    GenerateOutput(rid="r", parts=[AnswerPart(content="s"), AnswerPart(tool_call=ToolCall("1", "f", "{}"))]),
    GenerateOutput(rid="r", parts=[AnswerPart(tool_call_delta=ToolCall("2", "g", each)) for each in ('{"a"', ": ")]),
    GenerateOutput(
        rid="r", parts=[AnswerPart(tool_call=ToolCall("2", "g", '{"a": 1}'))], finish_reason=FinishReason("stop")
    ),
]


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([THOUGHT, SAID, CALL], [{"reasoning_content": "hm", "content": TEXT, "tool_calls": [CALLED]}]),
        ([SAID, SAID], [{"content": TEXT}, {"content": TEXT}]),
        ([CALL, THOUGHT, CALL], [{"tool_calls": [CALLED]}, {"reasoning_content": "hm", "tool_calls": [CALLED]}]),
        ([THOUGHT], [{"reasoning_content": "hm"}]),
        ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}, SAID],
         [{"reasoning_content": "so", "content": TEXT}]),
    ],
)  # fmt: skip
def test_what_the_model_said_in_a_row_is_one_turn(items: list[Any], turns: list[Any]) -> None:
    assert chat_turns(input_items(items)) == [{"role": "assistant", **turn} for turn in turns]


def test_a_result_has_the_name_of_its_call() -> None:
    _, result = chat_turns(input_items([CALL, RESULT]))
    assert result == {
        "role": "tool",
        "tool_call_id": "1",
        "name": "f",
        "content": [{"type": "text", "text": "done"}],
    }


def test_images_of_results_are_a_users_turn_behind_the_last_of_them() -> None:
    urls = [f"data:image/png;base64,{name}" for name in "ab"]
    given = [{"type": "input_image", "image_url": url} for url in urls]
    results = [RESULT | {"output": given[:1]}, RESULT, RESULT | {"output": [*RESULT["output"], given[1]]}]
    asked, *answered, user, said = chat_turns(input_items([CALL, *results, {"role": "user", "content": "and?"}]))
    done = [{"type": "text", "text": "done"}]
    assert [(turn["role"], turn["content"]) for turn in answered] == [("tool", []), ("tool", done), ("tool", done)]
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    assert user == {"role": "user", "content": images}
    assert (asked["role"], said) == ("assistant", {"role": "user", "content": "and?"})


def test_items_are_handed_back_as_what_clients_take_them_for() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,a", "detail": None}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    result = RESULT | {"output": [image]}
    items = [{"role": "user", "content": [image]}, SAID, said, {"role": "user", "content": "x"}, CALL, result, THOUGHT]
    page = item_page([in_parts(item) for item in input_items(items)], Page(order="asc"))
    found = TypeAdapter(ResponseItemList).validate_json(page, strict=True).data
    asked, answered = "ResponseInputMessageItem", "ResponseOutputMessage"
    calls = "ResponseFunctionToolCallItem", "ResponseFunctionToolCallOutputItem"
    assert [type(each).__name__ for each in found] == [
        *(asked, answered, answered, asked),
        *(*calls, "ResponseReasoningItem"),
    ]
    assert [part.detail for part in (found[0].content[0], found[5].output[0])] == ["auto", "auto"]


def test_a_field_that_an_item_of_this_type_has_not_is_handed_back_as_it_came() -> None:
    (call,) = input_items([CALL | {"content": ["a", 5, None]}])
    assert in_parts(call) == call


def test_a_call_in_a_namespace_has_both_names() -> None:
    asked, result = chat_turns(input_items([CALL | {"namespace": "mail"}, RESULT]))
    assert (asked["tool_calls"][0]["function"]["name"], result["name"]) == ("mail.f", "mail.f")


def test_a_result_may_have_a_name_of_its_own_and_no_call() -> None:
    (result,) = chat_turns(input_items([{"type": "function_call_output", "call_id": None, "name": "g", "output": "x"}]))
    assert result == {"role": "tool", "tool_call_id": "", "name": "g", "content": "x"}


def made() -> Answer:
    return Answer("resp_1", Body(input="hello"), "m", 1.0)


def sample() -> Sample:
    found = Sample()
    for output in OUTPUTS:
        found.add(output)
    return found


def events(chunk: bytes) -> list[Any]:
    return [json.loads(event.data) for event in Decoder().feed(chunk)]


def test_items_are_the_same_however_they_came() -> None:
    whole = made().body(OUTPUTS, sample(), None, 3.7)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert {item["status"] for item in whole["output"]} == {whole["status"]} == {"completed"}
    streamed = made()
    told = b"".join(streamed.chunk(OUTPUTS[:end]) for end in range(1, 6)) + streamed.end(OUTPUTS, sample(), None, 3.7)
    assert events(told)[-1]["response"] == whole
    assert (whole["created_at"], whole["completed_at"]) == (1, 3)
    grown = [event["delta"] for event in events(told) if event["type"] == "response.function_call_arguments.delta"]
    assert grown == ["{}", '{"a"', ": ", "1}"]
    done = [event["item"] for event in events(told) if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    again = made()
    at_once = again.chunk(OUTPUTS) + again.end(OUTPUTS, sample(), None, 3.7)
    assert events(at_once)[:-1] == events(told)[:-1]
    later = Answer("resp_1", Body(input="hello"), "m", 1.0, after=4).end(OUTPUTS, sample(), None, 3.7)
    assert events(later)[:-1] == events(told)[5:-1]


def test_a_response_that_fails_says_why_and_keeps_what_came() -> None:
    told = events(made().end(OUTPUTS[:2], Sample(), InternalError("the engine died"), 3.7))
    assert told[-1]["type"] == "response.failed"
    response = told[-1]["response"]
    assert (response["status"], response["error"]["message"]) == ("failed", "the engine died")
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    told = events(made().end(OUTPUTS[:4], Sample(), InternalError("the engine died"), 3.7))
    last = told[-1]["response"]["output"][-1]
    assert (last["name"], last["arguments"], last["status"]) == ("g", '{"a": ', "incomplete")


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    over = Sample()
    over.add(GenerateOutput(rid="r", finish_reason=FinishReason("stop")))
    (item,) = made().body([], over, None, 3.7)["output"]
    assert (item["status"], item["content"][0]["text"]) == ("completed", "")
    assert msgspec.json.encode(made().body([], Sample(), None, None)["output"]) == b"[]"
