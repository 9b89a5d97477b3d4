"""Triton's generate extension: flat JSON becomes tensors and parameters, and outputs flat JSON again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols import tensors
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor
from nbgen.protocols.triton_generate import load_metrics, parse_generate, response_body
from nbgen.tensor_spec import ModelSpec, TensorSpec

SPEC = ModelSpec(
    name="m",
    inputs=(
        TensorSpec(name="T", datatype="BYTES", dims=(1,)),
        TensorSpec(name="N", datatype="INT32", dims=(-1,), optional=True),
        TensorSpec(name="M", datatype="FP32", dims=(-1, 2), optional=True),
        TensorSpec(name="V", datatype="FP32", dims=(-1, -1), optional=True),
        TensorSpec(name="H", datatype="FP16", dims=(1,), optional=True),
    ),
    undeclared=(TensorSpec(name="stop", datatype="BYTES", dims=(-1,), optional=True),),
    outputs=(),
)
#: Some of them can be read, and written only with twice the recursion.
DEPTHS = (100, 300, 500, 700, 900, 5000)


def parse(body: str, spec: ModelSpec = SPEC) -> Inference:
    return parse_generate(memoryview(body.encode()), spec)


def inputs(body: str) -> dict[str, tuple[Any, list[Any]]]:
    return {
        name: (tensor.shape, tensors.values(tensor.data, tensor.datatype))
        for name, tensor in parse(body).inputs.items()
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"T": "a"}', {"T": ((1,), ["a"])}),
        ('{"N": "12"}', {"N": ((1,), [12])}),
        ('{"N": [1, 2, 3]}', {"N": ((3,), [1, 2, 3])}),
        ('{"M": [1, 2, 3, 4]}', {"M": ((2, 2), [1, 2, 3, 4])}),
        ('{"V": [1, 2, 3]}', {"V": ((1, 3), [1, 2, 3])}),
        ('{"N": [], "stop": ""}', {}),
        ('\ufeff{"N": 1}', {"N": ((1,), [1])}),
        ('{"parameters": {"N": [5], "stop": ["x"]}}', {"N": ((1,), [5]), "stop": ((1,), ["x"])}),
    ],
)
def test_members_become_the_models_inputs(body: str, expected: dict[str, Any]) -> None:
    assert inputs(body) == expected


def test_other_members_become_parameters() -> None:
    found = parse('{"id": "7", "a": 1, "stop": true, "parameters": {"b": "x", "b": "y"}}')
    assert (found.id, found.parameters, found.inputs) == ("7", {"a": 1, "stop": True, "b": "x", "id": "7"}, {})


@pytest.mark.parametrize(
    ("value", "datatype"), [(2**31 - 1, "INT32"), (2**31, "INT64"), (f'"{2**40}"', "INT64"), (-(2**40), "INT64")]
)
def test_a_number_takes_as_wide_a_datatype_as_it_needs(value: int | str, datatype: str) -> None:
    many = TensorSpec(name="max_tokens", datatype="INT32", dims=(1,), also=("INT64", "UINT32"))
    spec = ModelSpec(name="m", inputs=(many,), outputs=())
    (tensor,) = parse_generate(memoryview(f'{{"max_tokens": {value}}}'.encode()), spec).inputs.values()
    assert tensor.datatype == datatype
    assert tensors.values(tensor.data, datatype) == [int(str(value).strip('"'))]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"M": [1, 2, 3]}', r"'M' can not convert 3 elements to the shape \[-1, 2\]"),
        ('{"N": [1, [2, 3]]}', "can not convert 3 elements"),
        ('{"T": ["a", "b"]}', "'T' can not convert 2 elements"),
        ('{"T": "a", "parameters": {"T": "b"}}', "Converting keyword: 'parameters': input 'T' already exists"),
        ('{"T": "a", "T": "b"}', "input 'T' already exists"),
        (f'{{"other": 1{"0" * 400}}}', "parameter 'other' is a number that no double holds"),
        *[
            (f'{{"T": {value}}}', "input 'T': attempt to access JSON non-string as string")
            for value in ("{}", "123", "true", "null", "[1]")
        ],
        ('{"T": 5, "N": "x"}', "non-string as string"),
        ('{"N": "x", "T": 5}', "non-signed-integer as signed-integer"),
        ('{"N": 1.5}', "non-signed-integer as signed-integer"),
        (f'{{"N": 1{"0" * 40}}}', "out of range"),
        ('{"M": [true, true]}', "non-number"),
        (f'{{"T": {"[" * 120}"a"{"]" * 120}}}', "JSON nesting depth exceeds"),
        ('{"N": {}}', "attempt to access JSON non-signed-integer as signed-integer"),
        ('{"stop": {}}', "attempt to access JSON non-string as string"),
        ('{"M": [1, 1e40]}', "a value is out of range of FP32"),
        ('{"M": [1, 1e400]}', "1e400 is no number that a double holds"),
        ('{"other": -1e400}', "-1e400 is no number that a double holds"),
        ('{"M": [1, NaN]}', "NaN is no number"),
        ('{"H": 1}', "input 'H': FP16 has no form in JSON"),
        *[
            (f'{{"parameters": {value}}}', "Expected JSON object for keyword: 'parameters'")
            for value in ("[]", "1", '"x"')
        ],
        *[
            (f'{{"parameters": {{"x": {value}}}}}', "Converting keyword: 'parameters': parameter 'x' has invalid type")
            for value in ("{}", "[]", "null")
        ],
        ('{"parameters": {"parameters": {}}}', "parameter 'parameters' has invalid type"),
        ('{"x": {}}', "parameter 'x' has invalid type"),
        ('{"id": 7}', "Unable to parse 'id'"),
        *[('{"other":' * depth + r'"\ud83d\ude00"' + "}" * depth, "nested too deep|invalid type") for depth in DEPTHS],
        *[
            (body, "failed to parse the request JSON buffer: it is not an object")
            for body in ("[1]", '"x"', "5", "null")
        ],
        *[("[" * 250_000 + end * 250_000, "nested too deep") for end in ("", "]")],
        (f'{{"x": {"9" * 5000}}}', "a number is too long"),
        (r'{"T": "\ud800"}', "half of a surrogate pair"),
        ("", "failed to parse"),
        ('{"T": "a"} x', "failed to parse"),
        ("{", r"not JSON: Expecting property name .* \(character 1\)"),
    ],
)
def test_what_is_no_input_is_refused(body: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse(body)


def test_text_is_utf8() -> None:
    with pytest.raises(InvalidRequest, match=r"failed to parse the request JSON buffer: not UTF-8 \(byte 7\)"):
        parse_generate(memoryview(b'{"T": "\xff"}'), SPEC)


def output(name: str, datatype: str, shape: list[int], values: list[Any]) -> OutputTensor:
    return OutputTensor(name, datatype, shape, tensors.Binary([tensors.from_values(values, datatype)]))


def test_outputs_become_members_single_ones_bare() -> None:
    outputs = [
        output("text", "BYTES", [1], ["a"]),
        output("ids", "INT32", [2], [1, 2]),
        output("empty", "INT32", [0], []),
        output('q"', "FP32", [1, 1], [0.5]),
    ]
    response = InferenceResponse(model_name="m", model_version="1", outputs=outputs)
    expected = {"model_name": "m", "model_version": "1", "text": "a", "ids": [1, 2], "empty": [], 'q"': 0.5}
    assert json.loads(response_body(response, "")) == expected
    assert json.loads(response_body(response, "7")) == expected | {"id": "7"}


def test_the_load_is_told_in_the_format_that_is_wanted() -> None:
    text = load_metrics("text", 0.25, 100)
    assert text == "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=100"
    name, _, metrics = (load_metrics("json", 0.25, 100) or "").partition(" ")
    assert (name, json.loads(metrics)) == (
        "JSON",
        {"named_metrics": {"kv_cache_utilization": 0.25, "max_token_capacity": 100}},
    )
    assert load_metrics("xml", 0.25, 100) is None
