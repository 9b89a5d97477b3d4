"""Every place of every kind of body, with values that nobody expects there: each is read, or refused in words."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from nbgen.errors import NbgenError, NotFound
from nbgen.protocols import (
    anthropic_messages,
    conversations,
    embeddings,
    kserve,
    language_model,
    native,
    openai,
    responses,
    scores,
    sglang,
    sglang_adapters,
    sglang_memory,
    sglang_tokens,
    triton_generate,
)

LARGE = 10**400
VALUES = [
    *(LARGE, -LARGE, 2**63, 2**64, 1e308, -1, 1.5, True, None, "", "x", "9" * 400, "\udc80"),
    *([], {}, [None], [[]], [{}], [LARGE], ["x"], [True], {"a": 1}, {"": {}}, {"type": "x"}, {"type": []}),
    *([{"type": "text"}], [{"type": "function"}], [{"role": "user"}], [[1, 2], [3]]),
]
IMAGE = "data:image/png;base64,AAAA"
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": IMAGE}}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": IMAGE}]},
    {"type": "reasoning", "summary": [{"text": "a"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "x"},
]
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}], "is_error": True}
THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}
MESSAGE = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}],
        },
        {
            "role": "assistant",
            "content": [THOUGHT, {"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        },
        {"role": "user", "content": [RESULT]},
        {"role": "system", "content": "s"},
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "input_examples": [{}]}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["a"],
    "chat_template_kwargs": {"a": 1},
}
SPEC = language_model.interface("m", None)


class Nothing:
    """A memory of responses and conversations that has none."""

    def __getattr__(self, name: str) -> Any:
        return self._missing

    def _missing(self, *_: object) -> None:
        raise NotFound("there is none")


class Route(NamedTuple):
    """How a body is read, and one that is read well."""

    parse: Callable[[bytes], object]
    body: dict[str, Any]


ROUTES = {
    "chat": Route(
        openai.parse_chat,
        {
            "messages": CHAT,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
            "stream_options": {"include_usage": True},
            "logit_bias": {"5": 1},
            "stop": ["a"],
            "structured_outputs": {},
        },
    ),
    "completion": Route(openai.parse_completion, {"prompt": ["a", "b"], "logprobs": 2, "echo": True, "max_tokens": 3}),
    "generate": Route(
        sglang.parse_generate,
        {
            "text": ["a", "b"],
            "sampling_params": [{"n": 1, "stop": ["a"], "logit_bias": {"3": 1.0}, "custom_params": {}}, {}],
            "return_logprob": [True, False],
            "top_logprobs_num": [1, 2],
            "token_ids_logprob": [[1], [2]],
            "image_data": [IMAGE, None],
            "video_data": [{"frames": [IMAGE], "fps": 1}, None],
            "lora_path": ["a", None],
            "rid": ["a", "b"],
        },
    ),
    "embeds": Route(sglang.parse_generate, {"input_embeds": [[0.5, 1.0]], "sampling_params": {"max_new_tokens": 3}}),
    "response": Route(
        lambda raw: responses.parse_response(raw, Nothing()),  # type: ignore[arg-type]
        {
            "input": ITEMS,
            "tools": [{"type": "function", "name": "f", "parameters": {}}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
        },
    ),
    "message": Route(anthropic_messages.parse_message, MESSAGE),
    "count": Route(anthropic_messages.parse_count, {**MESSAGE, "messages": MESSAGE["messages"][1:]}),
    "conversation": Route(
        lambda raw: conversations.parse_create(raw, Nothing()),  # type: ignore[arg-type]
        {"items": ITEMS, "metadata": {"a": "b"}},
    ),
    "embeddings": Route(embeddings.parse_openai, {"input": ["a"], "dimensions": 3, "encoding_format": "float"}),
    "scores": Route(
        scores.parse_score, {"query": "q", "items": ["a", "b"], "label_token_ids": [1], "item_first": True}
    ),
    "encode": Route(embeddings.parse_encode, {"text": ["a"]}),
    "run": Route(native.parse_run, {"messages": CHAT[:2], "params": {"temperature": 0}, "tools": [TOOL], "media": []}),
    "subscribe": Route(native.parse_subscribe, {"follow": {"a": 0}, "start": {"prompt": "x", "params": {"n": 1}}}),
    "load": Route(native.parse_load, {"model": "a", "quantization": "int8"}),
    "tokenize": Route(sglang_tokens.parse_tokenize, {"messages": CHAT[:1], "tools": [TOOL]}),
    "detokenize": Route(sglang_tokens.parse_detokenize, {"tokens": [[1]], "skip_special_tokens": True}),
    "adapter": Route(sglang_adapters.parse_load, {"lora_name": "a", "lora_path": "b"}),
    "tags": Route(sglang_memory.parse_tags, {"tags": ["kv_cache"]}),
    "triton": Route(
        lambda raw: language_model.parse(triton_generate.parse_generate(memoryview(raw), SPEC)),
        {
            "text_input": "x",
            "parameters": {"max_tokens": 3, "stop": ["a"], "temperature": 0.1, "other": 1},
            "sampling_parameters": '{"n": 1}',
            "top_k": 3,
            "stop_words": ["a"],
        },
    ),
    "infer": Route(
        lambda raw: language_model.parse(kserve.parse_infer(memoryview(raw), None, SPEC)),
        {
            "id": "1",
            "inputs": [
                {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["x"]},
                {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [3]},
            ],
            "outputs": [{"name": "text_output", "parameters": {"classification": 1}}],
            "parameters": {"priority": 1, "timeout": 1, "temperature": "0.1"},
        },
    ),
}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all that is in a value, and of itself."""
    yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from places(each, (*place, name))


def put(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = inner = copy.deepcopy(body)
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return changed


@pytest.mark.parametrize("name", ROUTES)
def test_whatever_stands_anywhere_is_read_or_refused(name: str) -> None:
    route = ROUTES[name]
    route.parse(json.dumps(route.body).encode())
    refused = 0
    for place in places(route.body):
        for value in VALUES:
            try:
                route.parse(json.dumps(put(route.body, place, value)).encode())
            except NbgenError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{value!r:.60} at {place}") from error
    assert refused
