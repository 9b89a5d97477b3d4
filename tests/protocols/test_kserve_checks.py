"""Batches and missing inputs: what a model's declaration says of them, and what is told of it."""

import msgspec
import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols import kserve_checks, kserve_metadata
from nbgen.protocols.inference import Inference
from nbgen.tensor_spec import ModelSpec, TensorSpec
from tests.protocols.test_kserve import SPEC, inputs, parse

BATCHED = ModelSpec(
    name="b",
    inputs=tuple(TensorSpec(name=name, datatype="INT32", dims=(1,), optional=name == "S") for name in "AS"),
    outputs=(),
    max_batch_size=2,
)


def of_sizes(*sizes: int) -> Inference:
    items = [
        {"name": name, "shape": [size, 1], "datatype": "INT32", "data": [0] * size}
        for name, size in zip("AS", sizes, strict=False)
    ]
    return parse({"inputs": items}, spec=BATCHED)


def test_a_batch_has_one_size_and_no_more_than_the_models() -> None:
    assert [kserve_checks.batch_size(of_sizes(size, size), BATCHED) for size in (1, 2)] == [1, 2]
    assert kserve_checks.batch_size(parse(inputs()), SPEC) == 1
    for sizes, words in (
        ((3,), "must be <= 2 for 'b'"),
        ((0,), "at least 1, got 0"),
        ((1, 2), "different batch sizes"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            of_sizes(*sizes)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"between 1 and 2 but got 0 inputs for model 'm'\. Missing: A"):
        parse({"inputs": []})
    exact = ModelSpec(name="e", inputs=(SPEC.inputs[0], TensorSpec(name="B", datatype="INT32", dims=(2,))), outputs=())
    with pytest.raises(InvalidRequest, match=r"expected 2 inputs but got 1 inputs for model 'e'\. Missing: B"):
        parse(inputs(), spec=exact)


def test_what_is_told_of_a_model_is_as_it_is_on_the_wire() -> None:
    told = kserve_metadata.model_metadata(BATCHED)
    assert (told["name"], told["versions"], told["platform"]) == ("b", ["1"], "nbgen")
    assert told["inputs"] == [{"name": name, "datatype": "INT32", "shape": [-1, 1]} for name in "AS"]
    assert kserve_metadata.model_metadata(SPEC)["inputs"][0]["shape"] == [2]
    assert kserve_metadata.model_metadata(SPEC)["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [-1]}]
    assert kserve_metadata.model_metadata(msgspec.structs.replace(SPEC, platform="p"))["platform"] == "p"
