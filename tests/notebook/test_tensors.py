"""Arrays travel as KServe's JSON tensors and come back as they were."""

from typing import Any

import numpy as np
import pytest
import torch

from nbgen.errors import InvalidRequest
from nbgen.notebook.tensors import from_tensors, to_tensors


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"])
def test_numbers_keep_type_and_shape(kind: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    back = from_tensors(*to_tensors({"a": np.array([7]), "x": array}))["x"]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_numbers_that_json_cannot_write_and_tensors_of_torch_are_carried() -> None:
    given = {
        "odd": np.array([np.nan, np.inf, -np.inf, 1]),
        "grown": torch.nn.Parameter(torch.tensor([1.5])),
        "short": torch.tensor([0.5, float("nan")], dtype=torch.bfloat16),
    }
    back = from_tensors(*to_tensors(given))
    assert np.array_equal(back["odd"], given["odd"], equal_nan=True)
    assert back["grown"].tolist() == [1.5]
    assert back["short"].dtype == np.float32
    assert np.array_equal(back["short"], [0.5, np.nan], equal_nan=True)
    short = {"name": "y", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}
    assert from_tensors([short], b"\x00\x3f\x80\xff")["y"].tolist()[0] == 0.5


def test_texts_are_bytes_on_the_wire() -> None:
    (tensor,), _ = to_tensors({"text": [["a", "ä"]]})
    assert (tensor["datatype"], tensor["shape"], tensor["data"]) == ("BYTES", [1, 2], ["a", "ä"])
    assert from_tensors([tensor])["text"].tolist() == [["a", "ä"]]
    for given in (np.array([[b"a", b"bc"]]), np.array([[b"a", b"bc"]], dtype=object)):
        (tensor,), data = to_tensors({"text": given})
        assert (tensor["datatype"], tensor["shape"], data) == ("BYTES", [1, 2], b"\1\0\0\0a\2\0\0\0bc")
        assert from_tensors([tensor], data)["text"].tolist() == [["a", "bc"]]
    binary = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}
    assert from_tensors([binary], b"\2\0\0\0\xc3\xa4")["text"].tolist() == ["ä"]


@pytest.mark.parametrize(
    ("value", "declared", "kind"),
    [
        ([1, 2], "FP32", "FP32"),
        ([True], "INT64", "INT64"),
        (3, "UINT8", "UINT8"),
        ([0.5], "INT64", "FP64"),
        (["a"], "FP32", "BYTES"),
        ([1], "BYTES", "INT64"),
        ([1], "ODD", "INT64"),
        (np.zeros(1), "FP32", "FP64"),
        (torch.zeros(1), "FP64", "FP32"),
    ],
)
def test_what_has_no_type_takes_the_declared_one_unless_it_would_lose_something(
    value: Any, declared: str, kind: str
) -> None:
    ((tensor,), _) = to_tensors({"x": value}, {"x": declared})
    assert tensor["datatype"] == kind


def test_a_number_that_a_type_has_not_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="x has numbers that int8 has not"):
        to_tensors({"x": [300]}, {"x": "INT8"})


@pytest.mark.parametrize("value", [np.zeros(1, "complex64"), [object()]])
def test_what_tensors_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="x is an array of"):
        to_tensors({"x": value})
