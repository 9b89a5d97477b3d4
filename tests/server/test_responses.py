"""OpenAI's responses with the real client: whole, streamed, continued, in background."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.conftest import wait_for
from tests.server.conftest import BUSY, Server
from tests.server.test_tools import CITY, NOTHING

WEATHER = {"type": "function", "name": "get_weather", "description": "the weather", "parameters": CITY}
TIME = {"type": "function", "name": "get_time", "parameters": NOTHING}
TOOLS = [WEATHER, TIME]
CALL = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 1200}
THINKS = {"chat_template_kwargs": {"thinks": True}, "ignore_eos": True}
TOGETHER = {"separate_reasoning": False, "ignore_eos": True}
ROLES = ("user", "assistant")
#: Of `patient`: it is being written for many seconds.
LONG = {"model": "any", "input": "hello", "max_output_tokens": BUSY["max_new_tokens"], "extra_body": TOGETHER}


class Forecast(BaseModel):
    city: Literal["Rom", "Oslo"]
    sunny: bool


@pytest.fixture(scope="module")
def patient(server: Server) -> Iterator[openai.OpenAI]:
    """Of a server whose model has room for long answers."""
    with server.openai() as caller:
        yield caller


def ask(caller: openai.OpenAI, **options: Any) -> Any:
    asked = {"model": "any", "input": "hello", "temperature": 0, "max_output_tokens": 8, "extra_body": TOGETHER}
    return caller.responses.create(**{**asked, **options})


def test_a_response_says_what_a_chat_says(caller: openai.OpenAI) -> None:
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    chat = caller.chat.completions.create(model="any", messages=turns, temperature=0, max_tokens=8, extra_body=TOGETHER)
    response = ask(caller, instructions="be brief", metadata={"a": "b"})
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (chat.usage.prompt_tokens, 8)
    assert (response.metadata, response.instructions, response.temperature) == ({"a": "b"}, "be brief", 0)
    assert caller.responses.retrieve(response.id) == response


@pytest.mark.parametrize("extra", [TOGETHER, THINKS])
def test_a_stream_builds_the_response(caller: openai.OpenAI, extra: dict[str, Any]) -> None:
    told = list(ask(caller, stream=True, extra_body=extra))
    assert [event.sequence_number for event in told] == list(range(len(told)))
    deltas = [event for event in told if event.type.endswith(".delta")]
    part = "reasoning_text" if extra is THINKS else "output_text"
    assert {event.type for event in deltas} == {f"response.{part}.delta"}
    around = [event.type.removeprefix("response.") for event in told if event not in deltas]
    item = ["output_item.added", "content_part.added", f"{part}.done", "content_part.done", "output_item.done"]
    assert around == ["created", "in_progress", *item, "incomplete"]
    whole = ask(caller, extra_body=extra)
    said = told[-1].response.output[0]
    assert "".join(event.delta for event in deltas) == said.content[0].text == whole.output[0].content[0].text
    assert said.status == "incomplete"
    assert told[-1].response == caller.responses.retrieve(told[0].response.id)
    reasoning = told[-1].response.usage.output_tokens_details.reasoning_tokens
    assert reasoning == (8 if extra is THINKS else 0)


def test_thoughts_are_a_summary_for_who_asks_for_one(caller: openai.OpenAI) -> None:
    (plain,) = ask(caller, extra_body=THINKS).output
    assert (plain.summary, plain.content[0].type) == ([], "reasoning_text")
    asked = {"reasoning": {"summary": "auto"}, "extra_body": THINKS}
    response = ask(caller, **asked)
    (item,) = response.output
    assert [(part.type, part.text) for part in item.summary] == [("summary_text", plain.content[0].text)]
    assert (item.content, response.reasoning.summary) == (None, "auto")
    told = list(ask(caller, stream=True, **asked))
    deltas = [event for event in told if event.type == "response.reasoning_summary_text.delta"]
    assert "".join(event.delta for event in deltas) == item.summary[0].text
    assert {event.summary_index for event in deltas} == {0}
    around = [event.type.removeprefix("response.") for event in told[2:-1] if event not in deltas]
    part = ["reasoning_summary_part.added", "reasoning_summary_text.done", "reasoning_summary_part.done"]
    assert around == ["output_item.added", *part, "output_item.done"]
    assert told[-1].response.output[0].summary == item.summary


def test_log_probabilities_come_with_the_text(caller: openai.OpenAI) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    tokens = ask(caller, **asked).output[0].content[0].logprobs
    assert 0 < len(tokens) <= 8  # those at the end may have no text
    assert tokens[0].logprob == tokens[0].top_logprobs[0].logprob
    told = [event for event in ask(caller, stream=True, **asked) if event.type == "response.output_text.delta"]
    assert [t.token for event in told for t in event.logprobs] == [t.token for t in tokens]


def test_a_form_is_kept(caller: openai.OpenAI) -> None:
    for seed in range(3):
        response = caller.responses.parse(
            model="any",
            input="hello",
            text_format=Forecast,
            max_output_tokens=300,
            extra_body=TOGETHER | {"seed": seed},
        )
        assert response.status == "completed"
        assert isinstance(response.output_parsed, Forecast)


def test_the_clients_own_stream_reads_it(caller: openai.OpenAI) -> None:
    asked = {"model": "any", "input": "hello", "max_output_tokens": 300, "store": False, "background": False}
    asked["reasoning"] = {"effort": "low", "summary": "detailed"}
    labels = {
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "max_tool_calls": 3,
        "service_tier": "priority",
    }
    with caller.responses.stream(**asked, **labels, text_format=Forecast, extra_body=TOGETHER) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert "".join(deltas) == response.output_text
    assert isinstance(response.output_parsed, Forecast)
    assert {name: getattr(response, name) for name in labels} == labels | {"service_tier": "default"}


def test_a_call_and_its_result_go_on_in_three_ways(caller: openai.OpenAI) -> None:
    first = ask(caller, input="What is the weather?", **CALL)
    (call,) = first.output
    assert (call.type, call.status, first.status) == ("function_call", "completed", "completed")
    assert set(json.loads(call.arguments)) == set(CITY["properties"] if call.name == "get_weather" else ())
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    question = {"role": "user", "content": "What is the weather?"}
    ways: list[dict[str, Any]] = [
        {"input": [question, call.model_dump(exclude_none=True), result]},
        {"input": [question, {"type": "item_reference", "id": call.id}, result]},
        {"input": [result], "previous_response_id": first.id},
    ]
    answers = [ask(caller, tools=TOOLS, **way) for way in ways]
    assert len({(answer.usage.input_tokens, answer.output_text) for answer in answers}) == 1
    assert answers[0].usage.input_tokens > first.usage.input_tokens
    counted = caller.responses.input_tokens.count(model="any", tools=TOOLS, **ways[2])
    assert counted.input_tokens == answers[0].usage.input_tokens


def test_a_namespaces_function_is_called_under_its_own_name(caller: openai.OpenAI) -> None:
    space = {"type": "namespace", "name": "sky", "description": "what is above", "tools": [WEATHER]}
    asked = {**CALL, "tools": [TIME, space], "tool_choice": {"type": "function", "name": "sky.get_weather"}}
    told = list(ask(caller, stream=True, **asked))
    done = next(event for event in told if event.type == "response.function_call_arguments.done")
    first = told[-1].response
    (call,) = first.output
    assert (call.namespace, call.name, done.name) == ("sky", "get_weather", "get_weather")
    assert set(json.loads(call.arguments)) == set(CITY["properties"])
    assert [tool.name for tool in (*first.tools, *first.tools[1].tools)] == ["get_time", "sky", "get_weather"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ways: list[dict[str, Any]] = [
        {"input": [{"role": "user", "content": "hello"}, call.model_dump(exclude_none=True), result]},
        {"input": [result], "previous_response_id": first.id},
    ]
    tokens = {ask(caller, tools=asked["tools"], **way).usage.input_tokens for way in ways}
    assert len(tokens) == 1 < first.usage.input_tokens < max(tokens)


def test_a_call_that_is_cut_is_an_incomplete_item(caller: openai.OpenAI) -> None:
    asked = {**CALL, "tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 60}
    response = ask(caller, **asked, extra_body={"seed": 1})
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "incomplete")
    assert response.status == "incomplete"
    assert call.arguments.startswith("{")
    *others, last = ask(caller, stream=True, **asked, extra_body={"seed": 1})
    assert (last.type, last.response.output[0].arguments) == ("response.incomplete", call.arguments)
    assert not any(event.type.startswith("response.output_text") for event in others)
    goes_on = ask(caller, previous_response_id=response.id, input="go on", max_output_tokens=3, tools=TOOLS)
    assert goes_on.usage.input_tokens > response.usage.input_tokens


def test_a_streamed_call_has_events_of_its_own(caller: openai.OpenAI) -> None:
    text = {"type": "object", "properties": {"text": {"type": "string", "minLength": 300, "maxLength": 400}}}
    asked = {**CALL, "tools": [{"type": "function", "name": "write", "parameters": {**text, "required": ["text"]}}]}
    told = list(ask(caller, stream=True, **asked))
    deltas = [event for event in told if event.type == "response.function_call_arguments.delta"]
    names = [event.type.removeprefix("response.") for event in told if event not in deltas]
    done = ["function_call_arguments.done", "output_item.done", "completed"]
    assert names == ["created", "in_progress", "output_item.added", *done]
    assert told[3:-3] == deltas
    assert len(deltas) > 1, "it comes as it is written"
    assert told[-1].response.output == [told[-2].item]
    assert "".join(event.delta for event in deltas) == told[-3].arguments == told[-2].item.arguments
    with caller.responses.stream(model="any", input="hello", **asked, temperature=0, extra_body=TOGETHER) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        assert stream.get_final_response().output[0].arguments == snapshots[-1] == told[-2].item.arguments


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "get_time"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
    ],
)
def test_a_choice_narrows_the_tools(caller: openai.OpenAI, choice: dict[str, Any]) -> None:
    (call,) = ask(caller, **{**CALL, "tool_choice": choice}).output
    assert (call.name, json.loads(call.arguments)) == ("get_time", {})


def test_the_oldest_turns_make_room_for_the_answer(caller: openai.OpenAI) -> None:
    rounds = [{"role": role, "content": f"{number} {'hello ' * 50}"} for number in range(12) for role in ROLES]
    turns = [{"role": "system", "content": "be brief"}, *rounds, {"role": "user", "content": "and now?"}]
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        ask(caller, input=turns)
    lengths = [
        caller.responses.input_tokens.count(model="any", input=[turns[0], *turns[first:]]).input_tokens
        for first in range(len(turns) - 1, 12, -2)
    ]
    for options, most in (({"max_output_tokens": 100}, 1946), ({"max_output_tokens": 1000}, 1046)):
        cut = ask(caller, input=turns, truncation="auto", **options)
        assert cut.usage.input_tokens == max(length for length in lengths if length <= most)
        assert (cut.truncation, cut.usage.output_tokens) == ("auto", options["max_output_tokens"])
    assert len(list(caller.responses.input_items.list(cut.id, limit=100))) == len(turns)
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        ask(caller, input="hello " * 2000, truncation="auto")


def test_input_items_come_in_pages(caller: openai.OpenAI) -> None:
    turns = [{"role": "user", "content": str(number)} for number in range(5)]
    response = ask(caller, input=turns, max_output_tokens=1)
    pages = caller.responses.input_items.list(response.id, limit=2, order="asc")
    assert [item.content[0].text for item in pages] == list("01234")
    assert {item.content[0].type for item in pages} == {"input_text"}
    assert len(pages.data) == 2
    ids = [item.id for item in pages]
    again = ask(caller, input=[{"type": "item_reference", "id": ids[0]}] * 3, max_output_tokens=1)
    assert len({item.id for item in caller.responses.input_items.list(again.id, limit=1)}) == 3
    with pytest.raises(openai.BadRequestError, match="to begin after"):
        caller.responses.input_items.list(again.id, after=ids[1])
    assert [item.content[0].text for item in caller.responses.input_items.list(response.id)] == list("43210")


def test_a_route_that_there_is_not_is_not_found(caller: openai.OpenAI) -> None:
    """So that clients which try it first go on without it."""
    with pytest.raises(openai.NotFoundError, match="no route POST /v1/responses/compact"):
        caller.post("/responses/compact", body={"input": "hello"}, cast_to=object)


def test_what_is_not_stored_is_not_there(caller: openai.OpenAI) -> None:
    response = ask(caller, store=False)
    with pytest.raises(openai.NotFoundError):
        caller.responses.retrieve(response.id)
    kept = ask(caller)
    caller.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        caller.responses.retrieve(kept.id)


def test_a_response_in_background_is_followed_by_anybody(caller: openai.OpenAI) -> None:
    begun = caller.responses.create(background=True, **LONG | {"max_output_tokens": 1900})
    assert begun.status in ("queued", "in_progress")
    with caller.responses.retrieve(begun.id, stream=True) as stream:
        first = list(itertools.islice(stream, 5))  # there are more, however few deltas all of the text comes in
    rest = list(caller.responses.retrieve(begun.id, stream=True, starting_after=first[-1].sequence_number))
    assert [event.sequence_number for event in first + rest] == list(range(len(first + rest)))
    response = caller.responses.retrieve(begun.id)
    assert rest[-1].response == response
    told = "".join(event.delta for event in first + rest if event.type == "response.output_text.delta")
    assert (told, response.usage.output_tokens) == (response.output_text, 1900)
    with pytest.raises(openai.BadRequestError, match="`include_obfuscation` is not supported"):
        caller.responses.retrieve(begun.id, stream=True, include_obfuscation=True)


def ended(caller: openai.OpenAI, id: str) -> Any:
    """The response once it is over."""
    wait_for(lambda: caller.responses.retrieve(id).completed_at or caller.responses.retrieve(id).error, "it is over")
    return caller.responses.retrieve(id)


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"input": "hello " * 2000}, "context_length_exceeded", "maximum context length is 2048 tokens"),
        ({"input": "a", "max_output_tokens": 9999}, "context_length_exceeded", "max_output_tokens is too large"),
        ({"input": "a", "extra_body": {"regex": "("}}, "invalid_prompt", "Failed to compile"),
    ],
)
def test_a_request_in_background_that_is_at_fault_fails_so(
    caller: openai.OpenAI, asked: dict[str, Any], code: str, words: str
) -> None:
    response = ended(caller, caller.responses.create(model="any", background=True, **asked).id)
    assert (response.status, response.error.code) == ("failed", code)
    assert words in response.error.message
    *_, last = caller.responses.retrieve(response.id, stream=True)
    assert (last.type, last.response.error) == ("response.failed", response.error)


def test_a_response_in_background_outlives_its_stream_until_cancelled(patient: openai.OpenAI) -> None:
    with patient.responses.create(background=True, stream=True, **LONG) as stream:
        id = next(iter(stream)).response.id
    with pytest.raises(openai.BadRequestError, match="not ended"):
        ask(patient, previous_response_id=id)
    cancelled = patient.responses.cancel(id)
    assert cancelled.status == "cancelled"
    assert 0 < cancelled.usage.output_tokens < LONG["max_output_tokens"]
    assert patient.responses.cancel(id) == cancelled


def test_who_leaves_another_ends_it(patient: openai.OpenAI) -> None:
    with patient.responses.create(stream=True, **LONG) as stream:
        id = next(iter(stream)).response.id
    wait_for(lambda: patient.responses.retrieve(id).status == "cancelled", "it ends")
    with pytest.raises(openai.BadRequestError, match="in background"):
        patient.responses.cancel(id)
    with pytest.raises(openai.BadRequestError, match="in background"):
        patient.responses.retrieve(id, stream=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "words", "field"),
    [
        ({"input": []}, "input must hold 1", "input"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "no item 'msg_0'", "input"),
        ({"previous_response_id": "resp_0"}, "no response 'resp_0'", "previous_response_id"),
        ({"max_output_tokens": 10**6}, "max_output_tokens is too large", "max_output_tokens"),
    ],
)
def test_refusals_say_what_is_wrong(
    caller: openai.OpenAI, options: dict[str, Any], words: str, field: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        ask(caller, stream=stream, **options)
    assert refusal.value.param == field


def test_what_is_counted_is_refused_as_the_caller_wrote_it(caller: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as refusal:
        caller.responses.input_tokens.count(model="any", input="hello " * 50_000)
    assert (refusal.value.param, refusal.value.code) == ("input", "context_length_exceeded")


@pytest.mark.parametrize(
    "call",
    [
        lambda responses: responses.retrieve("resp_0"),
        lambda responses: responses.delete("resp_0"),
        lambda responses: responses.cancel("resp_0"),
        lambda responses: responses.input_items.list("resp_0"),
    ],
)
def test_an_unknown_response_is_not_found(caller: openai.OpenAI, call: Callable[[Any], object]) -> None:
    with pytest.raises(openai.NotFoundError, match="resp_0"):
        call(caller.responses)
