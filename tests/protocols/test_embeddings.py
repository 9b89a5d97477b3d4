"""Embeddings: bodies to requests, and vectors to OpenAI's answers and SGLang's."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import EmbedOutput
from nbgen.protocols import embeddings
from nbgen.protocols.embeddings import (
    Embedding,
    encode_body,
    openai_body,
    parse_classify,
    parse_encode,
    parse_openai,
)
from nbgen.protocols.sglang_unsupported import IN_EMBEDDINGS, IN_ENCODE

VECTORS = [[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]]
OUTPUTS = [
    EmbedOutput(rid=str(n), prompt_tokens=n + 2, data=memoryview(np.array(vector, "<f4").tobytes()))
    for n, vector in enumerate(VECTORS)
]


def parsed(parse: Callable[[bytes], Embedding], **fields: Any) -> Embedding:
    return parse(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("parse", "text", "ids"), [(parse_openai, "input", "input"), (parse_encode, "text", "input_ids")]
)
def test_texts_and_ids_alone_or_several(parse: Callable[[bytes], Embedding], text: str, ids: str) -> None:
    for name, value, prompts, single in (
        (text, "a", ["a"], True),
        (text, ["a", "b"], ["a", "b"], False),
        (ids, [1, 2], [[1, 2]], True),
        (ids, [[1], [2, 3]], [[1], [2, 3]], False),
    ):
        call = parsed(parse, **{name: value})
        assert ([request.text or request.input_ids for request in call.requests], call.single) == (prompts, single)
        assert len({request.rid for request in call.requests}) == len(prompts)


@pytest.mark.parametrize("name", sorted(IN_ENCODE))
def test_what_sglang_does_and_is_not_done_here_is_refused_by_name(name: str) -> None:
    for unset in IN_ENCODE[name]:
        parsed(parse_encode, text=["a", "b"], **{name: unset})
        parsed(parse_encode, text=["a", "b"], **{name: [unset, unset]})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
        parsed(parse_encode, text="a", **{name: [[1.5]]})
    if name in IN_EMBEDDINGS:
        with pytest.raises(InvalidRequest, match=f"`{name}` is not supported"):
            parsed(parse_openai, input="a", **{name: [[1.5]]})


def test_texts_and_ids_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="text and input_ids cannot be provided at the same time"):
        parsed(parse_encode, text="a", input_ids=[1])


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_openai, "input"), (parse_classify, "input"), (parse_encode, "text")]
)
def test_texts_have_the_ids_of_their_caller(parse: Callable[[bytes], Embedding], text: str) -> None:
    assert parsed(parse, **{text: "a", "rid": "mine"}).ids == ["mine"]
    assert parsed(parse, **{text: ["a", "b"], "rid": ["x", "y"]}).ids == ["x", "y"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, True]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "pooling": "mean", "dimensions": 8}, "dimensions"),
        ({"input": "a", "lora_path": "mine"}, "lora_path"),
        ({"input": "a", "lora_path": ["mine"], "pooling": "mean"}, "lora_path"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "dimensions": 2**16 + 1}, "dimensions"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(parse_openai, **fields)
    assert refusal.value.field == field


def test_as_many_as_may_be_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "MAX_TEXTS", 2)
    assert len(parsed(parse_openai, input=["a", "b"], dimensions=2**16, encoding_format=None).requests) == 2
    with pytest.raises(InvalidRequest, match="3 texts; at most 2"):
        parsed(parse_openai, input=["a", "b", "c"])


def test_vectors_are_shortened_to_length_one() -> None:
    answer = json.loads(openai_body(parsed(parse_openai, input=["a", "b"], dimensions=2), OUTPUTS, "m"))
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert np.allclose([item["embedding"] for item in answer["data"]], [[0.6, 0.8], [0, 0]])
    assert (answer["model"], answer["usage"]) == ("m", {"prompt_tokens": 5, "total_tokens": 5})
    whole = json.loads(openai_body(parsed(parse_openai, input=["a", "b"], dimensions=3), OUTPUTS, "m"))
    assert [item["embedding"] for item in whole["data"]] == VECTORS
    with pytest.raises(InvalidRequest, match="`dimensions` is 4; the embeddings of this model have 3"):
        openai_body(parsed(parse_openai, input="a", dimensions=4), OUTPUTS[:1], "m")


def test_base64_is_of_little_endian_floats() -> None:
    call = parsed(parse_openai, input="a", encoding_format="base64")
    (item,) = json.loads(openai_body(call, OUTPUTS[:1], "m"))["data"]
    assert np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() == VECTORS[0]


def test_sglang_gets_an_object_or_a_list_with_the_callers_ids() -> None:
    single = json.loads(encode_body(parsed(parse_encode, text="a", rid="x"), OUTPUTS[:1], 1.5))
    assert (single["embedding"], single["meta_info"]["id"]) == (VECTORS[0], "x")
    assert (single["meta_info"]["prompt_tokens"], single["meta_info"]["e2e_latency"]) == (2, 1.5)
    several = json.loads(encode_body(parsed(parse_encode, text=["a", "b"], rid=["x", "y"]), OUTPUTS, 1.5))
    assert [item["meta_info"]["id"] for item in several] == ["x", "y"]
    for wrong, field in (({"rid": 1}, "rid"), ({"rid": ["x", 1]}, "rid"), ({"image_data": "i"}, "image_data")):
        with pytest.raises(InvalidRequest) as refusal:
            parsed(parse_encode, text=["a", "b"], **wrong)
        assert refusal.value.field == field


def test_a_text_that_was_to_be_cut_is_not_embedded_whole() -> None:
    for unset in (None, -1):
        assert parsed(parse_openai, input="a", truncate_prompt_tokens=unset).single
    with pytest.raises(InvalidRequest, match="`truncate_prompt_tokens` is not supported"):
        parsed(parse_openai, input="a", truncate_prompt_tokens=5)
