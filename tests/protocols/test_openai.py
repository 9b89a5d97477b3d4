"""OpenAI's bodies become requests, or refusals that name the field as the caller wrote it."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, LogprobOptions
from nbgen.protocols.openai import UNSUPPORTED, Call, parse_chat, parse_completion
from nbgen.word_lists import WordLists

HELLO = [{"role": "user", "content": "hello"}]


def completion(**body: Any) -> Call:
    return parse_completion(json.dumps({"prompt": "a", **body}).encode())


def chat(**body: Any) -> Call:
    return parse_chat(json.dumps({"messages": HELLO, **body}).encode())


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("a", ["a"], [None]),
        (["a", "b"], ["a", "b"], [None, None]),
        ([5, 6], [None], [[5, 6]]),
        ([[5], [6, 7]], [None, None], [[5], [6, 7]]),
    ],
)
def test_every_form_of_a_prompt(prompt: Any, texts: list, ids: list) -> None:
    requests = completion(prompt=prompt).requests
    assert [r.text for r in requests] == texts
    assert [r.input_ids for r in requests] == ids


def test_defaults_and_renamed_options() -> None:
    params = completion().requests[0].params
    assert (params.max_new_tokens, params.temperature) == (16, None)
    assert chat().requests[0].params.max_new_tokens is None
    body = {"max_tokens": 5, "seed": 3, "min_tokens": 2, "stop": "x", "logit_bias": {"7": 1}, "n": 2, "top_k": 4}
    params = completion(**body).requests[0].params
    assert (params.max_new_tokens, params.sampling_seed, params.min_new_tokens) == (5, 3, 2)
    assert (params.stop, params.logit_bias, params.n, params.top_k) == (("x",), {7: 1.0}, 2, 4)
    assert chat(max_tokens=9, max_completion_tokens=4).requests[0].params.max_new_tokens == 4


def test_the_engine_knows_which_requests_are_streamed() -> None:
    assert [call(stream=stream).requests[0].streamed for call in (completion, chat) for stream in (True, False)] == [
        *(True, False),
        *(True, False),
    ]


def test_messages_of_every_written_form() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    turns = [{"role": "developer", "content": "be short"}, {"role": "user", "content": parts, "name": "ada"}]
    (request,) = chat(messages=turns).requests
    assert request.messages == [ChatMessage(role="system", content="be short"), ChatMessage(role="user", content="ab")]


def test_a_refusal_of_before_is_text() -> None:
    parts = [{"type": "text", "text": "I say "}, {"type": "refusal", "refusal": "no"}]
    (request,) = chat(messages=[{"role": "assistant", "content": parts}]).requests
    assert request.messages == [ChatMessage(role="assistant", content="I say no")]


def test_an_answer_that_was_a_refusal_goes_back_as_it_came() -> None:
    (request,) = chat(messages=[{"role": "assistant", "content": None, "refusal": "no"}]).requests
    assert request.messages == [ChatMessage(role="assistant", content="no")]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chats_limit_has_the_name_that_it_came_with(name: str) -> None:
    for options, words in (({}, f"{name} must be at least 1"), ({"min_tokens": 5}, f"at most {name}")):
        with pytest.raises(InvalidRequest, match=words):
            chat(**{name: 4 if options else 0}, **options)


def test_templates_are_told_how_to_answer() -> None:
    (request,) = chat(verbosity="low", reasoning_effort="high").requests
    assert request.template_options == {"verbosity": "low", "reasoning_effort": "high"}
    assert chat().requests[0].template_options == {}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(("mode", "required"), [("auto", False), ("required", True)])
def test_of_the_allowed_tools_the_model_sees_no_others(mode: str, required: bool) -> None:
    tools = [function(name, parameters={}) for name in "abc"]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function("a"), function("c")]}}
    options = chat(tools=tools, tool_choice=choice).requests[0].tools
    assert options is not None
    assert (options.tools, options.required) == ([tools[0], tools[2]], required)
    choice["allowed_tools"]["tools"].append(function("z"))
    with pytest.raises(InvalidRequest, match="tool_choice names 'z'"):
        chat(tools=tools, tool_choice=choice)


def test_logprobs_of_both_kinds() -> None:
    assert completion(logprobs=3).requests[0].logprobs == LogprobOptions(top=3, text=True)
    assert completion(logprobs=0, echo=True).requests[0].logprobs == LogprobOptions(start=0, text=True)
    assert completion(echo=True).logprobs is False, "they are for the prompt's text alone"
    assert chat(logprobs=True, top_logprobs=2).requests[0].logprobs == LogprobOptions(top=2, text=True)
    assert chat().requests[0].logprobs is None


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "token ids"),
        ({"prompt": [-1]}, "prompt", "token ids"),
        ({"prompt": None}, "prompt", "text"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "x"}, "max_tokens", "int"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"seed": 1.5}, "seed", "integer"),
        ({"min_tokens": -1}, "min_tokens", "at least 0"),
        ({"min_tokens": 30}, "min_tokens", r"at most max_tokens \(16\)"),
        ({"stop": 5}, "stop", "text or a list of text, got 5"),
        ({"logprobs": 21}, "logprobs", "0 to 20"),
        ({"n": 129}, "n", "at most 128"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "Invalid enum value"),
    ],
)
def test_what_cannot_work_is_refused_by_the_callers_name(body: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        completion(**body)
    assert refusal.value.field == field
    assert field in refusal.value.message


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"guided_json": {"type": "object"}}, ("json_schema", '{"type":"object"}')),
        ({"guided_json": '{"type": "object"}'}, ("json_schema", '{"type": "object"}')),
        ({"guided_regex": "a|b"}, ("regex", "a|b")),
        ({"guided_choice": ["a.", "b"]}, ("regex", r"a\.|b")),
        ({"guided_grammar": 'root ::= "a"'}, ("ebnf", 'root ::= "a"')),
        ({"structured_outputs": {"json": {"type": "object"}}}, ("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"json_object": True}}, ("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"regex": "a", "json": None, "disable_fallback": False}}, ("regex", "a")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ("regex", "a|b")),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, ("ebnf", 'root ::= "a"')),
        ({"structured_outputs": None, "guided_json": None, "guided_regex": "", "regex": None}, None),
        ({"guided_regex": None, "regex": "a"}, ("regex", "a")),
    ],
)
def test_vllms_structured_output_is_ours(fields: dict[str, Any], grammar: tuple[str, str] | None) -> None:
    assert chat(**fields).requests[0].params.grammar == grammar
    assert completion(**fields).requests[0].params.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"regex": "a", "guided_regex": "b"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
        ({"bad_words": ["a"] * 257}, "bad_words"),
        ({"bad_words": [1]}, "bad_words"),
    ],
)
def test_what_structured_output_cannot_be_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as refusal:
        chat(**fields)
    assert (refusal.value.field or "").startswith(field)


def test_bad_words_are_taken_and_empty_ones_are_none() -> None:
    assert completion(bad_words=["a", ""]).requests[0].words == WordLists(bad=["a"])
    assert completion(bad_words=[""]).requests[0].words is None


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_served_yet_is_refused_unless_unset(name: str) -> None:
    for unset in UNSUPPORTED[name]:
        chat(**{name: unset})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
        chat(**{name: [{"type": "function"}]})


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "function", "content": "x"}],
        [{"role": "tool", "tool_call_id": "1"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image", "image": "x"}]}],
    ],
)
def test_messages_that_cannot_be_served_are_refused(messages: list) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        chat(messages=messages)
    assert refusal.value.field == "messages"


def test_unknown_fields_are_ignored() -> None:
    assert chat(user="ada", metadata={"a": 1}, store=False, service_tier="auto").requests
