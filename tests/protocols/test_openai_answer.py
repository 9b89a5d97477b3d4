"""OpenAI's chunks of several choices, which come as their sequences do."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from pydantic import TypeAdapter

from nbgen.engine_config import EngineConfig
from nbgen.errors import Forbidden, InvalidRequest, NbgenError, NotFound, Unauthorized, Unavailable
from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, TokenLogprobs, ToolCall
from nbgen.protocols.openai import parse_chat, parse_completion
from nbgen.protocols.openai_answer import Answer, error_body, error_event, model_card
from nbgen.protocols.sample import Sample
from nbgen.sse import DONE, Decoder


def first_output(*prompt: str) -> GenerateOutput:
    """The first of two tokens, with what there is of the prompt."""
    entries = [TokenLogprobs((-0.5, i, text)) for i, text in enumerate(prompt)]
    return GenerateOutput(
        rid="r",
        text="x",
        token_ids=(9,),
        logprobs=[TokenLogprobs((-0.1, 9, "x"))],
        prompt_logprobs=entries,
        prompt_text="".join(prompt),
    )


LAST = GenerateOutput(
    rid="r",
    text="y",
    token_ids=(8,),
    logprobs=[TokenLogprobs((-0.2, 8, "y"))],
    finish_reason=FinishReason(type="length"),
)


def choices(answer: Answer, samples: list[list[Sample]]) -> list[dict[str, Any]]:
    return [json.loads(event.data)["choices"][0] for event in Decoder().feed(answer.chunks(samples))]


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {}])
@pytest.mark.parametrize("prompt", [["ab", "ab"], [[1, 2], [1, 2]]])
def test_the_echo_of_a_choice_comes_with_its_first_output(prompt: list[Any], asked: dict[str, Any]) -> None:
    call = parse_completion(json.dumps({"prompt": prompt, "echo": True, "stream": True, **asked}).encode())
    answer, samples, found = Answer(call, "m"), [Sample(), Sample()], []
    early, late = samples
    for sample, output in (
        (early, first_output("a", "b")),
        (early, LAST),
        (late, first_output("a", "b")),
        (late, LAST),
    ):
        sample.add(output)
        found += choices(answer, [[each] for each in samples])
    for index in (0, 1):
        own = [choice for choice in found if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "abxy"
        tokens = [token for choice in own if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
        assert tokens == (["a", "b", "x", "y"] if asked else [])


def test_a_choice_without_output_says_nothing() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "n": 2, "stream": True}
    answer, samples = Answer(parse_chat(json.dumps(body).encode()), "m"), [Sample(), Sample()]
    samples[0].add(first_output())
    assert {choice["index"] for choice in choices(answer, [samples])} == {0}
    samples[1].add(LAST)
    assert [choice["delta"].get("role") for choice in choices(answer, [samples])] == ["assistant", None, None]


def test_token_ids_come_as_their_tokens_do_and_the_prompts_once() -> None:
    first, last = (msgspec.structs.replace(output, logprobs=[]) for output in (first_output(), LAST))
    for parse, asked in ((parse_completion, {"prompt": "a"}), (parse_chat, HELLO)):
        call = parse(json.dumps(asked | {"stream": True, "return_token_ids": True}).encode())
        answer, growing, found = Answer(call, "m"), Sample(), []
        for output in (msgspec.structs.replace(first, prompt_ids=[1, 2]), last):
            growing.add(output)
            found += choices(answer, [[growing]])
        assert [choice["prompt_token_ids"] for choice in found if "prompt_token_ids" in choice] == [[1, 2]]
        assert [choice["token_ids"] for choice in found if choice.get("token_ids")] == [[9], [8]]
        told = json.loads(Answer(call, "m").whole([[growing]]))
        assert told["choices"][0].items() >= {"prompt_token_ids": [1, 2], "token_ids": [9, 8]}.items()
        assert told.get("prompt_token_ids") == ([1, 2] if call.chat else None), "where vLLM has it"
    alone = whole(growing, return_prompt_token_ids=True)["choices"][0]
    assert (alone["prompt_token_ids"], "token_ids" in alone) == ([1, 2], False)
    assert not {"prompt_token_ids", "token_ids"}.intersection(whole(growing)["choices"][0])


STOP = FinishReason(type="stop", matched=7)
CALLS = [AnswerPart(tool_call=ToolCall(id, "f", "{}")) for id in "12"]
PARTS = [AnswerPart(reasoning="hm"), AnswerPart(content="so"), *CALLS]
HELLO = {"messages": [{"role": "user", "content": "a"}]}


def sample(*outputs: GenerateOutput) -> Sample:
    found = Sample()
    for output in outputs:
        found.add(output)
    return found


def whole(sample: Sample, **fields: Any) -> dict[str, Any]:
    """The answer to a chat."""
    return json.loads(Answer(parse_chat(json.dumps(HELLO | fields).encode()), "m").whole([[sample]]))


@pytest.mark.parametrize(
    ("parts", "reason", "ended", "content", "calls"),
    [
        (PARTS, STOP, "tool_calls", "so", 2),
        (PARTS, FinishReason("length"), "length", "so", 2),
        (PARTS[:2], STOP, "stop", "so", 0),
        (PARTS[2:], STOP, "tool_calls", None, 2),
        (PARTS[:1], STOP, "stop", "", 0),
    ],
)
def test_a_message_has_thoughts_text_and_calls(
    parts: list[AnswerPart], reason: FinishReason, ended: str, content: str | None, calls: int
) -> None:
    answer = whole(sample(GenerateOutput(rid="r", parts=parts, token_ids=(1,), finish_reason=reason)))
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == (ended, reason.matched)
    message = choice["message"]
    assert (message["role"], message["content"], len(message.get("tool_calls", ()))) == ("assistant", content, calls)
    assert message["reasoning_content"] == ("hm" if parts[0].reasoning else None)
    assert (answer["object"], answer["model"], answer["id"][:9]) == ("chat.completion", "m", "chatcmpl-")


def test_calls_are_numbered_through_a_stream() -> None:
    answer, growing = Answer(parse_chat(json.dumps(HELLO | {"stream": True}).encode()), "m"), Sample()
    found = []
    for parts in (PARTS[:1], PARTS[1:2], CALLS[:1], CALLS, CALLS):
        growing.add(GenerateOutput(rid="r", parts=parts, token_ids=(1,)))
        found += choices(answer, [[growing]])
    assert [call["index"] for choice in found for call in choice["delta"].get("tool_calls", ())] == list(range(5))
    assert [next(iter(choice["delta"])) for choice in found] == [
        *("role", "reasoning_content", "content"),
        *["tool_calls"] * 5,
    ]
    growing.add(GenerateOutput(rid="r", finish_reason=STOP))
    (last,) = choices(answer, [[growing]])
    assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    assert choices(answer, [[growing]]) == []


def test_arguments_come_in_pieces_after_a_name() -> None:
    answer, growing = Answer(parse_chat(json.dumps(HELLO | {"stream": True, "logprobs": True}).encode()), "m"), Sample()
    pieces = [AnswerPart(tool_call_delta=ToolCall("1", "f", text)) for text in ('{"a"', ": ", '"b')]
    ends = [AnswerPart(tool_call=ToolCall("1", "f", '{"a": "bc"}')), *CALLS[1:]]
    found = []
    for parts in (pieces[:1], pieces[1:], ends):
        growing.add(GenerateOutput(rid="r", parts=parts, token_ids=(1,), logprobs=[TokenLogprobs((-0.5, 1, "x"))]))
        found += choices(answer, [[growing]])
    named = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}
    told = [({"index": 0, "function": {"arguments": text}}) for text in ('{"a"', ': "b', 'c"}')]
    other = {"index": 1, "id": "2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert [call for choice in found for call in choice["delta"].get("tool_calls", ())] == [named, *told, other]
    assert sum(len(choice["logprobs"]["content"]) for choice in found if choice["logprobs"]) == 3
    (message,) = [choice["message"] for choice in whole(growing)["choices"]]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": "bc"}', "{}"]


def test_text_is_in_one_chunk_with_its_tokens() -> None:
    call = parse_chat(json.dumps(HELLO | {"stream": True, "logprobs": True}).encode())
    thought, *texts = [AnswerPart(reasoning="hm"), *(AnswerPart(content=text) for text in ("he", "", " was"))]
    growing = Sample()
    for text in texts:
        logprobs = [TokenLogprobs((-0.5, 1, text.content))]
        growing.add(GenerateOutput(rid="r", parts=[text], token_ids=(1,), logprobs=logprobs))
    _, chunk = choices(Answer(call, "m"), [[growing]])
    assert chunk["delta"] == {"content": "he was"}
    assert [token["token"] for token in chunk["logprobs"]["content"]] == ["he", "", " was"]
    mixed = sample(GenerateOutput(rid="r", parts=[thought, thought, *texts, *CALLS, *texts], token_ids=(1,)))
    found = [choice["delta"] for choice in choices(Answer(call, "m"), [[mixed]])[1:]]
    assert found[:2] == [{"reasoning_content": "hmhm"}, {"content": "he was"}]
    assert [list(delta) for delta in found[2:]] == [["tool_calls"], ["tool_calls"], ["content"]]


COUNTS = {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 3}


def test_a_prompt_counts_once_and_every_answer() -> None:
    call = parse_completion(b'{"prompt": ["a", "b"], "n": 2}')
    samples = [[sample(GenerateOutput(rid="r", text="x", **COUNTS, finish_reason=STOP))] * 2] * 2
    answer = json.loads(Answer(call, "m").whole(samples))
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(n, "x") for n in range(4)]
    usage = answer["usage"]
    assert [usage[f"{name}_tokens"] for name in ("prompt", "completion", "total", "reasoning")] == [10, 8, 18, 0]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}
    assert "completion_tokens_details" not in usage
    thought = whole(sample(GenerateOutput(rid="r", parts=PARTS[:1], token_ids=(1, 2), **COUNTS, finish_reason=STOP)))
    assert thought["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("options", "in_each", "at_end"),
    [
        ({}, None, False),
        ({"include_usage": True}, None, True),
        ({"continuous_usage_stats": True}, 7, False),
    ],
)
def test_usage_comes_where_it_is_asked_for(options: dict[str, Any], in_each: int | None, at_end: bool) -> None:
    call = parse_chat(json.dumps(HELLO | {"stream": True, "stream_options": options}).encode())
    answer, samples = Answer(call, "m"), [[sample(GenerateOutput(rid="r", text="x", token_ids=(1,), **COUNTS))]]
    for event in Decoder().feed(answer.chunks(samples)):
        chunk = json.loads(event.data)
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["usage"] or {}).get("total_tokens") == in_each
    end = answer.end(samples)
    assert end.endswith(DONE)
    told = [json.loads(event.data) for event in Decoder().feed(end) if event.data != "[DONE]"]
    assert [(chunk["choices"], chunk["usage"]["total_tokens"]) for chunk in told] == [([], 7)] * at_end


@pytest.mark.parametrize(
    ("error", "type", "code"),
    [
        (InvalidRequest("no", field="model"), "invalid_request_error", 400),
        (NotFound("no", field="model"), "invalid_request_error", "model_not_found"),
        (NotFound("no", field="id"), "invalid_request_error", 404),
        (Unauthorized("no"), "authentication_error", "invalid_api_key"),
        (Forbidden("no"), "permission_error", 403),
        (Unavailable("no"), "server_error", 503),
    ],
)
def test_errors_are_flat_and_nested(error: NbgenError, type: str, code: Any) -> None:
    fields = {"message": "no", "type": type, "param": error.field, "code": code}
    assert json.loads(error_body(error)) == {"object": "error", **fields, "error": fields}
    (event,) = Decoder().feed(error_event(error))
    assert json.loads(event.data) == {"error": {"object": "error", **fields}}


def test_a_card_tells_the_context_that_there_will_be() -> None:
    card = model_card(EngineConfig(model="m", context_length=64), None, 7)
    assert (card["id"], card["root"], card["created"], card["max_model_len"]) == ("m", "m", 7, 64)


@pytest.mark.parametrize("kind", [openai.types.Model, anthropic.types.ModelInfo])
def test_a_card_has_what_clients_of_either_kind_read(kind: type) -> None:
    card = msgspec.json.encode(model_card(EngineConfig(model="m"), None, 7))
    assert TypeAdapter(kind).validate_json(card, strict=True).id == "m"
