"""Calls of tools and thoughts over OpenAI's endpoint, with the real client and a model whose template has both."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field, HttpUrl
from transformers import AutoTokenizer

from nbgen.sse import Decoder
from tests.server.conftest import Server, events

ASK = [{"role": "user", "content": "What is the weather?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rom", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time", "parameters": NOTHING}},
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


def ask(caller: openai.OpenAI, messages: list[Any] = ASK, **options: Any) -> Any:
    """A random model thinks without end where it may: only those who want thoughts apart make room for them."""
    asked = {"model": "any", "messages": messages, "max_tokens": 1200, "extra_body": {"separate_reasoning": False}}
    return caller.chat.completions.create(**{**asked, **options})


def checked(call: Any) -> None:
    """The call is one of the tools' that its schema allows."""
    assert call.type == "function"
    assert call.id.isalnum()
    schema = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), schema)


def test_a_required_call_comes(caller: openai.OpenAI) -> None:
    choice = ask(caller, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    checked(call)


def test_the_named_function_is_called_once(caller: openai.OpenAI) -> None:
    chosen = {"type": "function", "function": {"name": "get_time"}}
    for choice in ask(caller, tools=TOOLS, tool_choice=chosen, n=3).choices:
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {})


def test_functions_need_no_type(caller: openai.OpenAI) -> None:
    tools = [{"function": tool["function"]} for tool in TOOLS]
    (call,) = ask(caller, tools=tools, tool_choice={"function": {"name": "get_time"}}).choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_time")


class Order(BaseModel):
    labels: set[Literal["new", "old"]] = Field(max_length=3)
    amount: int = Field(multiple_of=5, ge=0, le=100)


class Letter(BaseModel):
    text: str = Field(json_schema_extra={"minLength": 300, "maxLength": 400})


class Link(BaseModel):
    link: HttpUrl


class Address(BaseModel):
    mail: str = Field(max_length=50, json_schema_extra={"format": "email"})


def function(name: str, kind: type[BaseModel], **options: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": kind.model_json_schema(), **options}}


def test_a_function_of_ordinary_types_can_be_required(caller: openai.OpenAI) -> None:
    chosen = {"type": "function", "function": {"name": "order"}}
    for choice in ("required", chosen):
        asked = {"tools": [function("order", Order)], "tool_choice": choice, "parallel_tool_calls": False}
        (call,) = ask(caller, **asked).choices[0].message.tool_calls
        assert json.loads(call.function.arguments).keys() == {"labels", "amount"}
    for kind, strict in ((Link, True), (Address, False)):
        tools = [function("open", kind, strict=strict)]
        assert ask(caller, tools=tools, tool_choice="required", max_tokens=9).choices
    for more in ({"tool_choice": "required"}, {"response_format": FORMAT}):
        words = (
            "^Error code: 400.*the parameters of the strict function 'open' cannot be enforced: format and maxLength"
        )
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            ask(caller, tools=[*TOOLS, function("open", Address, strict=True)], **more)
        assert refused.value.param == "tools"


def name_of(calls: list[Any], number: int) -> str:
    return "".join(call.function.name or "" for call in calls if call.index == number)


def arguments_of(calls: list[Any], number: int) -> str:
    return "".join(call.function.arguments for call in calls if call.index == number)


def test_a_stream_brings_each_call_with_its_number(caller: openai.OpenAI) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "seed": 3, "temperature": 1.0, "logprobs": True}
    whole = ask(caller, **asked).choices[0]
    chunks = list(ask(caller, stream=True, stream_options={"include_usage": True}, **asked))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    numbers = [call.index for call in calls if call.id]
    assert numbers == list(range(len(numbers)))
    assert sorted(numbers) == sorted({call.index for call in calls})
    told = [(name_of(calls, number), arguments_of(calls, number)) for number in numbers]
    assert told == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()]
    ended = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert ended == [whole.finish_reason]
    tokens = [
        token.token for c in chunks if c.choices and c.choices[0].logprobs for token in c.choices[0].logprobs.content
    ]
    assert tokens == [token.token for token in whole.logprobs.content]
    assert chunks[-1].usage.completion_tokens == len(tokens)


WEATHER = {"type": "function", "function": {"name": "get_weather"}}


def test_the_clients_own_stream_has_arguments_that_grow(caller: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(Letter)]
    asked = {"model": "any", "messages": ASK, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    asked |= {"max_tokens": 1200, "n": 2, "seed": 1, "extra_body": {"separate_reasoning": False}}
    with caller.chat.completions.stream(**asked) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        choices = stream.get_final_completion().choices
    assert len(deltas) > len(choices), "what has come by the time that a busy machine looks is one event"
    whole = caller.chat.completions.parse(**asked).choices
    for streamed, choice in zip(choices, whole, strict=True):
        (call,), (same,) = streamed.message.tool_calls, choice.message.tool_calls
        assert call.function.arguments == same.function.arguments
        assert isinstance(call.function.parsed_arguments, Letter)
        assert streamed.finish_reason == "tool_calls"


def test_a_stop_string_in_a_call_cuts_it(caller: openai.OpenAI) -> None:
    asked = {"tools": TOOLS, "tool_choice": WEATHER, "stop": ["days"], "seed": 1}
    (choice,) = ask(caller, **asked).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("stop", None)
    assert (*call.function.arguments.split('"')[1::2], "days") == ("city", "Rom", "", "days")
    chunks = [chunk.choices[0] for chunk in ask(caller, stream=True, **asked)]
    told = [each for chunk in chunks for each in chunk.delta.tool_calls or ()]
    assert (arguments_of(told, 0), chunks[-1].finish_reason) == (call.function.arguments, "stop")


@pytest.mark.parametrize(("tokens", "begun"), [(5, False), (25, False), (60, True)])
def test_a_call_that_is_cut_is_told_as_far_as_it_goes(caller: openai.OpenAI, tokens: int, begun: bool) -> None:
    asked = {"tools": TOOLS, "tool_choice": WEATHER, "max_tokens": tokens, "seed": 1}
    (choice,) = ask(caller, **asked).choices
    calls = choice.message.tool_calls or []
    assert (choice.finish_reason, choice.message.content) == ("length", None if begun else "")
    assert [call.function.name for call in calls] == ["get_weather"] * begun
    assert all(call.function.arguments.startswith("{") for call in calls)
    chunks = [chunk.choices[0] for chunk in ask(caller, stream=True, **asked)]
    assert not any(chunk.delta.content for chunk in chunks)
    told = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert arguments_of(told, 0) == "".join(call.function.arguments for call in calls)
    assert chunks[-1].finish_reason == "length"


def test_a_run_has_nothing_to_call_where_the_arguments_are_cut(calling_server: Server) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": WEATHER, "params": {"max_new_tokens": 60}, "chat": "cut"}
    whole = calling_server.http.post("api/v1/runs", json={**body, "stream": False}).json()
    assert (whole["text"], whole["tool_calls"], whole["finish_reason"]["type"]) == ("", [], "length")
    found = events(calling_server.http, "POST", "api/v1/runs", json=body)
    deltas = [json.loads(event.data) for event in found if event.event == "delta"]
    assert not any(delta["text"] or "tool_calls" in delta for delta in deltas)


def test_a_function_that_was_not_offered_is_no_call(caller: openai.OpenAI, calling_model: Path) -> None:
    wanted = '{"name": "get_other", "arguments": {}}'
    (other,) = AutoTokenizer.from_pretrained(calling_model).encode("o")
    form = {"regex": f"<tool_call>\n{re.escape(wanted)}\n</tool_call>", "separate_reasoning": False}
    asked = {"tools": TOOLS, "logit_bias": {str(other): 100}, "extra_body": form}
    (choice,) = ask(caller, **asked).choices
    assert (choice.finish_reason, choice.message.tool_calls, choice.message.content) == ("stop", None, wanted)
    chunks = [chunk.choices[0] for chunk in ask(caller, stream=True, **asked)]
    assert not any(chunk.delta.tool_calls for chunk in chunks)
    assert "".join(chunk.delta.content or "" for chunk in chunks) == wanted


def test_a_call_that_no_grammar_sees_to_comes_whole(caller: openai.OpenAI) -> None:
    form = {"regex": r'<tool_call>\{"name": "get_time", "arguments": \{\}\}</tool_call>', "separate_reasoning": False}
    asked = {"tools": TOOLS[1:], "max_tokens": 1500, "temperature": 0, "extra_body": form}
    chunks = [chunk.choices[0] for chunk in ask(caller, stream=True, **asked)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert calls
    assert all((call.id, call.type, json.loads(call.function.arguments)) == (call.id, "function", {}) for call in calls)


def test_results_go_back_through_the_template(caller: openai.OpenAI) -> None:
    said = ask(caller, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*ASK, said.model_dump(exclude_none=True), result]
    answer = ask(caller, turns, tools=TOOLS, max_tokens=5)
    tokens = caller.post("/tokenize", body={"messages": turns, "tools": TOOLS}, cast_to=object)["tokens"]
    assert answer.usage.prompt_tokens == len(tokens)
    text = caller.post("/detokenize", body={"tokens": tokens, "skip_special_tokens": False}, cast_to=object)["text"]
    call = said.tool_calls[0].function
    arguments = json.dumps(json.loads(call.arguments))
    assert f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>' in text
    assert "<result>sunny</result>" in text
    assert "strict" not in text


def test_tools_that_are_not_to_be_seen_are_not(caller: openai.OpenAI) -> None:
    seen, unseen, none = (
        ask(caller, max_tokens=1, **options).usage.prompt_tokens
        for options in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {})
    )
    assert seen > unseen == none


def test_thoughts_come_apart(caller: openai.OpenAI, calling_model: Path) -> None:
    end = AutoTokenizer.from_pretrained(calling_model).convert_tokens_to_ids("</think>")
    opened = {"chat_template_kwargs": {"thinks": True}, "ignore_eos": True}
    answer = ask(caller, max_tokens=9, temperature=0, extra_body=opened)
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens == 9
    only = answer.choices[0].message
    assert not only.content
    assert only.reasoning_content
    together = ask(caller, max_tokens=9, temperature=0, extra_body={**opened, "separate_reasoning": False})
    assert together.choices[0].message.content.strip() == only.reasoning_content
    assert together.choices[0].message.reasoning_content is None
    chunks = ask(caller, max_tokens=9, temperature=0, extra_body=opened, stream=True)
    pieces = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(piece, "reasoning_content", None) or "" for piece in pieces) == only.reasoning_content
    over = ask(caller, logit_bias={str(end): 100}, max_tokens=3, extra_body=opened).choices[0].message
    assert over.content == "</think></think>"


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_has_none_of_its_stop_strings(
    calling_server: Server, caller: openai.OpenAI, calling_model: Path, stream: bool
) -> None:
    end = AutoTokenizer.from_pretrained(calling_model).convert_tokens_to_ids("</think>")
    asked = {"logit_bias": {str(end): 100}, "stop": ["k", "h"]}
    answer = ask(caller, stream=stream, **asked)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join((c.delta if stream else c.message).content or "" for c in choices) == "</t"
    assert caller.completions.create(model="any", prompt="a", **asked).choices[0].text == "</t"
    body = {"text": "a", "sampling_params": {**asked, "max_new_tokens": 9}}
    assert calling_server.http.post("generate", json=body).json()["text"] == "</thin", "SGLang's is the list's order"


def test_an_answer_of_a_form_may_follow_a_thought(caller: openai.OpenAI, calling_model: Path) -> None:
    end = AutoTokenizer.from_pretrained(calling_model).convert_tokens_to_ids("</think>")
    opened = {"chat_template_kwargs": {"thinks": True}}
    for more in ({}, {"tools": TOOLS, "parallel_tool_calls": False}):
        said = ask(caller, response_format=FORMAT, logit_bias={str(end): 100}, extra_body=opened, **more).choices[0]
        assert said.message.reasoning_content is None
        if said.message.content:
            jsonschema.validate(json.loads(said.message.content), CITY)
        for call in said.message.tool_calls or ():
            checked(call)


def test_the_panels_runs_bring_thoughts_and_calls(calling_server: Server) -> None:
    thinks = {"messages": ASK, "params": {"max_new_tokens": 9, "ignore_eos": True, "temperature": 0}, "chat": "c"}
    found = events(calling_server.http, "POST", "api/v1/runs", json={**thinks, "template_options": {"thinks": True}})
    deltas = [json.loads(event.data) for event in found if event.event == "delta"]
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas)
    assert reasoning
    assert not any(delta["text"] for delta in deltas)
    (asked, said) = calling_server.http.get("api/v1/chats/c").json()["turns"]
    assert (asked["content"], said["content"], said["reasoning"]) == (ASK[0]["content"], "", reasoning)
    chosen = {"type": "function", "function": {"name": "get_time"}}
    params = {"max_new_tokens": 1200, "sampling_seed": 1}
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": chosen, "stream": False, "params": params}
    answer = calling_server.http.post("api/v1/runs", json=body).json()
    assert answer["text"] == ""
    assert [(call["name"], json.loads(call["arguments"])) for call in answer["tool_calls"]] == [("get_time", {})]
    refused = calling_server.http.post("api/v1/runs", json={"prompt": "a", "tools": TOOLS})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "tools")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_choice": "required"}, "no tools"),
        ({"tools": [{"type": "function", "function": {
            "name": "f", "strict": True, "parameters": {"patternProperties": {"(": {}}}}}],
          "tool_choice": "required"}, r"'f' cannot be enforced: the pattern '\(' cannot be read"),
        *(({"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}],
            "tool_choice": choice}, f"parameters of the strict function 'f' cannot be enforced: {words}")
          for choice in ("auto", "required")
          for parameters, words in (({"$ref": "#", "type": "object"}, r"\$ref '#' leads back to itself"),
                                    ({"type": "object", "required": [["a"]]}, r"`required\[0\]` cannot be so"))),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong(caller: openai.OpenAI, options: dict[str, Any], words: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        ask(caller, stream=stream, **options)


@pytest.mark.parametrize("parameters", [{"$ref": "#", "type": "object"}, {"properties": 5}, {"format": ["x"]}])
def test_parameters_that_cannot_be_enforced_are_any(caller: openai.OpenAI, parameters: dict[str, Any]) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    chosen = {"type": "function", "function": {"name": "odd"}}
    (call,) = ask(caller, tools=[*TOOLS, odd], tool_choice=chosen, max_tokens=60).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments[:1]) == ("odd", "{")


def test_a_call_that_is_nested_too_deeply_ends_nobody_elses_answer(calling_server: Server, calling_model: Path) -> None:
    opened = '<tool_call>\n{"name": "get_time", "arguments": ' + "[" * 1200
    ids = AutoTokenizer.from_pretrained(calling_model).encode(opened)
    params = {"max_new_tokens": 1, "ignore_eos": True}
    hostile = {"messages": ASK, "tools": TOOLS[1:], "prefix_ids": ids, "params": params, "stream": False}
    other = {"text": "a", "sampling_params": {**params, "max_new_tokens": 2000}, "stream": True}
    engine = calling_server.engine()
    with calling_server.http.stream("POST", "generate", json=other) as answer:
        chunks, decoder = answer.iter_bytes(), Decoder()
        found = decoder.feed(next(chunks))
        said = calling_server.http.post("api/v1/runs", json=hostile).json()
        found += [event for chunk in chunks for event in decoder.feed(chunk)]
    assert (said["tool_calls"], said["finish_reason"]["type"]) == ([], "length")
    assert not said["text"] or said["text"].startswith(opened), "it is text if its last token makes it no JSON"
    assert json.loads(found[-2].data)["meta_info"]["completion_tokens"] == 2000
    assert calling_server.engine() == engine
