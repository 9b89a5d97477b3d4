"""OpenAI's bodies become requests, or refusals that name the field as the caller wrote it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, LogprobOptions, TensorOptions
from nbgen.protocols.openai import UNSUPPORTED, Call, parse_chat, parse_completion
from nbgen.word_lists import WordLists
from tests.protocols.test_openai_fields import HINTS

HELLO = [{"role": "user", "content": "hello"}]


def completion(**body: Any) -> Call:
    return parse_completion(json.dumps({"prompt": "a", **body}).encode())


def chat(**body: Any) -> Call:
    return parse_chat(json.dumps({"messages": HELLO, **body}).encode())


def test_the_engines_options_are_known_by_the_callers_names() -> None:
    names = chat(max_tokens=3, response_format={"type": "json_object"}).names
    assert [names[name] for name in ("max_new_tokens", "json_schema")] == ["max_tokens", "response_format"]
    assert chat(regex="a", response_format={"type": "text"}).names["regex"] == "regex"
    assert "json_schema" not in chat().names
    assert chat().names["top_logprobs_num"] == "top_logprobs"
    assert [completion().names[name] for name in ("top_logprobs_num", "logprob_start_len")] == ["logprobs", "echo"]


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
    params = completion(**body, best_of=2).requests[0].params
    assert (params.max_new_tokens, params.sampling_seed, params.min_new_tokens) == (5, 3, 2)
    assert (params.stop, params.logit_bias, params.n, params.top_k) == (("x",), {7: 1.0}, 2, 4)
    assert completion(include_stop_str_in_output=True, no_stop_trim=None).requests[0].params.no_stop_trim
    with pytest.raises(InvalidRequest, match="include_stop_str_in_output: Expected `bool`"):
        completion(include_stop_str_in_output="yes")
    assert chat(max_tokens=9, max_completion_tokens=4).requests[0].params.max_new_tokens == 4


@pytest.mark.parametrize(
    ("theirs", "ours", "value"),
    [
        ("temperature", "temperature", 0.5),
        ("top_p", "top_p", 0.5),
        ("min_p", "min_p", 0.5),
        ("presence_penalty", "presence_penalty", -1.5),
        ("frequency_penalty", "frequency_penalty", 1.5),
        ("repetition_penalty", "repetition_penalty", 1.5),
        ("stop_token_ids", "stop_token_ids", (5, 6)),
        ("stop_regex", "stop_regex", ("a", "b")),
        ("no_stop_trim", "no_stop_trim", True),
        ("include_stop_str_in_output", "no_stop_trim", True),
        ("ignore_eos", "ignore_eos", True),
        ("skip_special_tokens", "skip_special_tokens", False),
        ("spaces_between_special_tokens", "spaces_between_special_tokens", False),
        ("custom_params", "custom_params", {"a": 1}),
    ],
)
def test_every_option_reaches_the_engine(theirs: str, ours: str, value: Any) -> None:
    for call in (completion, chat):
        assert getattr(call(**{theirs: value}).requests[0].params, ours) == value


def test_what_is_asked_beside_the_sampling() -> None:
    body = {"extra_key": "k", "cache_salt": "s", "priority": 3, "custom_logit_processor": "p", "lora_path": "a"}
    for call in (completion, chat):
        (request,) = call(**body).requests
        assert (request.namespace, request.priority) == (("k", "s"), 3)
        assert (request.logit_processor, request.adapter) == ("p", "a")
        (plain,) = call().requests
        assert (plain.namespace, plain.priority, plain.logit_processor, plain.adapter) == ((), 0, None, "")


def test_each_prompt_may_have_an_adapter_of_its_own() -> None:
    assert [r.adapter for r in completion(prompt=["a", "b"], lora_path=[None, "x"]).requests] == ["", "x"]
    assert [r.adapter for r in completion(prompt=["a", "b"], lora_path="x").requests] == ["x", "x"]
    with pytest.raises(InvalidRequest, match="1 names for 2 prompts") as refusal:
        completion(prompt=["a", "b"], lora_path=["x"])
    assert refusal.value.field == "lora_path"


def test_the_models_own_numbers_come_where_they_are_asked_for() -> None:
    assert chat().requests[0].tensors is None
    for asked in (True, "last"):
        assert chat(return_hidden_states=asked).requests[0].tensors == TensorOptions(last_hidden_state=True)
    assert chat(return_routed_experts=True).requests[0].tensors == TensorOptions(routed_experts=0)
    later = chat(return_routed_experts=True, routed_experts_start_len=1)
    assert later.requests[0].tensors == TensorOptions(routed_experts=1)
    with pytest.raises(InvalidRequest, match="at least 0, got -1") as refusal:
        chat(return_routed_experts=True, routed_experts_start_len=-1)
    assert refusal.value.field == "routed_experts_start_len"


def test_how_a_chat_goes_on_and_what_its_template_is_told() -> None:
    (plain,) = chat().requests
    assert (plain.continue_final, plain.thoughts, plain.parts, plain.tools) == (False, True, True, None)
    options = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    (request,) = chat(continue_final_message=True, separate_reasoning=False, **options).requests
    assert (request.continue_final, request.thoughts) == (True, False)
    assert request.template_options == {"reasoning_effort": "low", "enable_thinking": False}


@pytest.mark.parametrize(
    "options",
    [{"tools": ""}, {"messages": ""}, {"add_generation_prompt": False}, {"no name": 1}, {"x": [1]}, {"x": None}],
)
def test_what_a_template_cannot_be_told_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="is not an option that a template may be given") as refusal:
        chat(chat_template_kwargs=options)
    assert refusal.value.field == "chat_template_kwargs"


def test_a_template_is_told_no_more_than_so_much() -> None:
    most = {f"x{number}": number for number in range(32)}
    assert chat(chat_template_kwargs=most).requests[0].template_options == most
    with pytest.raises(InvalidRequest, match="33 options; at most 32"):
        chat(chat_template_kwargs=most | {"more": 1})


def test_usage_comes_where_it_is_asked_for() -> None:
    asked = chat(stream=True, model="m", stream_options={"include_usage": True})
    assert (asked.model, asked.stream, asked.usage, asked.usage_in_each) == ("m", True, True, False)
    assert chat(stream_options={"continuous_usage_stats": True}).usage_in_each
    assert (chat().stream, chat().usage, chat().usage_in_each) == (False, False, False)


def test_the_choices_of_one_call_are_bounded() -> None:
    assert len(completion(prompt=["a"] * 512, n=2).requests) == 512
    with pytest.raises(InvalidRequest, match="1026 choices at once; at most 1024") as refusal:
        completion(prompt=["a"] * 513, n=2)
    assert refusal.value.field == "n"


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


def test_a_turn_of_the_models_may_be_thoughts_alone() -> None:
    for given in ({"reasoning_content": "hm"}, {"reasoning_content": "hm", "tool_calls": []}):
        (request,) = chat(messages=[{"role": "assistant", "content": None, **given}]).requests
        assert request.messages == [ChatMessage(role="assistant", reasoning="hm")]


def test_thoughts_have_two_names() -> None:
    for given in ({"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning_content": "hm", "reasoning": "other"}):
        (request,) = chat(messages=[{"role": "assistant", "content": "yes", **given}]).requests
        assert request.messages == [ChatMessage(role="assistant", content="yes", reasoning="hm")]


def test_a_call_of_the_old_form_is_refused_and_not_lost() -> None:
    said = {"role": "assistant", "content": "", "function_call": None}
    assert chat(messages=[said]).requests[0].messages == [ChatMessage(role="assistant", content="")]
    with pytest.raises(InvalidRequest, match="give it in `tool_calls`") as refusal:
        chat(messages=[said | {"function_call": {"name": "f", "arguments": "{}"}}])
    assert refusal.value.field == "messages"


def test_a_field_that_is_missing_is_the_one_that_is_wrong() -> None:
    with pytest.raises(InvalidRequest, match=r"^`messages` is missing: it must be given$") as refusal:
        parse_chat(b'{"max_tokens": 5}')
    assert refusal.value.field == "messages"


@pytest.mark.parametrize("part", [{"type": "file", "file": {"file_data": "x"}}, {"type": "input_file"}])
def test_files_are_not_read(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"type '{part['type']}' is not read here: send its text"):
        chat(messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    "part", [{"type": "text", "content": "x"}, {"type": "text", "text": None}, {"type": "refusal"}]
)
def test_a_text_that_is_not_there_is_no_empty_text(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=rf"messages\[0\].content\[0\].*needs `{part['type']}`, a text"):
        chat(messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chats_limit_has_the_name_that_it_came_with(name: str) -> None:
    for options, words in (({}, f"{name} must be at least 1"), ({"min_tokens": 5}, f"at most {name}")):
        with pytest.raises(InvalidRequest, match=words):
            chat(**{name: 4 if options else 0}, **options)


def test_templates_are_told_how_to_answer() -> None:
    for effort, thinks in (("none", False), ("high", True)):
        told = chat(verbosity="low", reasoning_effort=effort).requests[0].template_options
        assert told == {"verbosity": "low", "reasoning_effort": effort, "thinking": thinks, "enable_thinking": thinks}
    assert chat(verbosity="low").requests[0].template_options == {"verbosity": "low"}
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "names none"),
        ({"tool_choice": {"type": "allowed_tools"}}, "needs `allowed_tools`"),
        ({"tool_choice": {"type": "custom"}}, "custom"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
    ],
)
def test_tools_of_other_kinds_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        chat(**{"tools": [function("f")], **options})


def test_logprobs_of_both_kinds() -> None:
    assert completion(logprobs=3).requests[0].logprobs == LogprobOptions(top=3, text=True)
    assert completion(logprobs=0, echo=True).requests[0].logprobs == LogprobOptions(start=0, text=True)
    assert completion(echo=True).requests[0].logprobs is None, "an echo alone needs none"
    assert [completion(prompt=prompt, echo=True).requests[0].echo for prompt in ("a", [1])] == [False, True]
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
        ({"logprobs": -1}, "logprobs", "0 to 20"),
        ({"prompt": [True]}, "prompt", "token ids"),
        ({"prompt": [2**31]}, "prompt", "token ids"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": [[1], []]}, "prompt", "empty"),
        ({"n": 129}, "n", "at most 128"),
        ({"n": 2, "best_of": 3}, "best_of", "not supported"),
        ({"bad_words": ["a"] * 257}, "bad_words", "bad_words"),
        ({"bad_words": [1]}, "bad_words[0]", "bad_words"),
        ({"bad_words": ["é" * 513]}, "bad_words", "bad_words"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "Invalid enum value"),
    ],
)
def test_what_cannot_work_is_refused_by_the_callers_name(body: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        completion(**body)
    assert refusal.value.field == field
    assert field in refusal.value.message


def test_bad_words_are_taken_and_empty_ones_are_none() -> None:
    assert completion(bad_words=["a", ""]).requests[0].words == WordLists(bad=["a"])
    assert completion(bad_words=[""]).requests[0].words is None


def test_allowed_tokens_are_a_processor_of_ours() -> None:
    (request,) = completion(allowed_token_ids=[5, 6]).requests
    assert json.loads(request.logit_processor or "") == {"name": "allowed_tokens", "args": {"token_ids": [5, 6]}}
    assert completion(allowed_token_ids=[]).requests[0].logit_processor is None
    with pytest.raises(InvalidRequest, match="allowed_token_ids and custom_logit_processor exclude each other"):
        completion(allowed_token_ids=[5], custom_logit_processor="p")


@pytest.mark.parametrize(
    ("parse", "unset", "wrong"),
    [
        (completion, {"add_special_tokens": True}, {"add_special_tokens": False}),
        (chat, {"add_special_tokens": False}, {"add_special_tokens": True}),
        (chat, {"echo": False}, {"echo": True}),
        (chat, {"add_generation_prompt": True}, {"add_generation_prompt": False}),
        (chat, {"add_generation_prompt": False, "continue_final_message": True}, {"add_generation_prompt": 0}),
    ],
)
def test_how_a_prompt_is_written_is_not_decided_by_a_field_that_is_not_read(
    parse: Callable[..., Call], unset: dict[str, Any], wrong: dict[str, Any]
) -> None:
    assert parse(**unset).requests
    with pytest.raises(InvalidRequest) as refusal:
        parse(**wrong)
    assert refusal.value.field == next(iter(wrong))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_served_yet_is_refused_unless_unset(name: str) -> None:
    for unset in UNSUPPORTED[name]:
        chat(**{name: unset})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported") as refusal:
        chat(**{name: [{"type": "function"}]})
    assert refusal.value.field == name


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "function", "content": "x"}],
        [{"role": "tool", "tool_call_id": "1"}],
        [{"role": "user", "content": None}],
        [*HELLO, {"role": "assistant"}],
        [{"role": "user", "content": [{"type": "image", "image": "x"}]}],
    ],
)
def test_messages_that_cannot_be_served_are_refused(messages: list) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        chat(messages=messages)
    assert refusal.value.field == "messages"


def test_what_is_inside_of_other_fields_is_refused_by_its_place() -> None:
    assert chat(stream_options={"include_obfuscation": False, "include_usage": True}).usage
    with pytest.raises(InvalidRequest, match="is not supported by this server: leave it out, or give false") as refusal:
        chat(stream_options={"include_obfuscation": True})
    assert refusal.value.field == "stream_options.include_obfuscation"


def test_hints_and_unknown_fields_change_nothing() -> None:
    assert chat(rid="r", **dict.fromkeys(HINTS, "ada"), unknown=1) == chat(rid="r")
