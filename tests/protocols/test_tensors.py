"""Tensors to JSON and bytes and back: every datatype, every size, and everything that does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.bytes_elements import pack_bytes, unpack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols import tensors
from nbgen.protocols.tensors import NUMPY, Binary
from nbgen.tensor_spec import ELEMENT_BYTES

LISTED = sorted(set(NUMPY) - {"FP16"})


def example(datatype: str, size: int) -> np.ndarray:
    generator = np.random.default_rng(size)
    dtype = NUMPY[datatype]
    if dtype.kind == "f":
        return generator.standard_normal(size).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, size).astype(dtype)
    info = np.iinfo(dtype)
    return generator.integers(info.min, info.max, size, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("datatype", LISTED)
@pytest.mark.parametrize("size", [0, 1, 7, 70_000])
def test_lists_and_bytes_say_the_same(datatype: str, size: int) -> None:
    array = example(datatype, size)
    text = json.dumps(array.tolist()).encode()
    data, count = tensors.from_json(text, datatype)
    assert (count, bytes(data)) == (size, array.tobytes())
    back = b"".join(tensors.to_json(Binary([memoryview(array.tobytes())]), datatype))
    assert np.array(json.loads(back), NUMPY[datatype]).tobytes() == array.tobytes()
    assert b" " not in back


def test_the_fewest_digits_that_give_the_number_back() -> None:
    array = np.array([0.1, -1e-7, 3, 16_777_217, 3.4e38], np.float32)
    text = b"".join(tensors.to_json(Binary([memoryview(array.tobytes())]), "FP32"))
    assert text.replace(b"e+", b"e") == b"[0.1,-1e-7,3.0,16777216.0,3.4e38]"


def test_nesting_is_read_through_up_to_a_depth() -> None:
    assert tensors.from_json(b"[[1,[2]],[],3]", "INT64")[1] == 3
    for depth, fits in ((50, True), (120, False)):
        text = b"[" * depth + b"1" + b"]" * depth
        if fits:
            assert tensors.from_json(text, "INT64")[1] == 1
        else:
            with pytest.raises(InvalidRequest, match="JSON nesting depth exceeds"):
                tensors.from_json(text, "INT64")


@pytest.mark.parametrize(
    ("text", "datatype", "words"),
    [
        (b"[1]", "BYTES", "non-string as string"),
        (b"[1]", "BOOL", "non-boolean as boolean"),
        (b"[1.5]", "INT32", "non-signed-integer"),
        (b"[true]", "INT32", "non-signed-integer"),
        (b"[-1]", "UINT8", "non-unsigned-integer"),
        (b'["1"]', "FP32", "non-number"),
        (b"[null]", "FP32", "non-number"),
        (b"[300]", "UINT8", "out of range"),
        (b"[-129]", "INT8", "out of range"),
        (b"[99999999999999999999]", "INT64", "out of range"),
        (b"[1e400]", "FP32", "out of range"),
        (b"[1e400]", "FP64", "out of range"),
        (b"[0, -1e40]", "FP32", "out of range of FP32"),
        (b"[1]", "FP16", "send it as binary data"),
        (b"[1]", "BF16", "send it as binary data"),
        (b"5", "INT32", "non-array as array"),
        (b"[%b,1.5]" % b",".join([b"1"] * 100_000), "INT32", "non-signed-integer"),
    ],
)
def test_what_is_of_another_type_is_refused(text: bytes, datatype: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tensors.from_json(text, datatype)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_bytes_elements_survive(items: list[bytes]) -> None:
    assert unpack_bytes(pack_bytes(items)) == items


@given(st.binary(max_size=64))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        items = unpack_bytes(memoryview(data))
    except InvalidRequest:
        return
    assert bytes(pack_bytes(items)) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"\1\0\0", "incomplete string length indicator"), (b"\2\0\0\0a", "string elements"), (b"", "string elements")],
)
def test_cut_bytes_elements_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        tensors.check_size(Tensor(name="x", datatype="BYTES", shape=(1,), data=memoryview(data)))


def test_sizes_are_those_of_shape_and_datatype() -> None:
    for datatype, width in ELEMENT_BYTES.items():
        if width:
            tensors.check_size(Tensor(name="x", datatype=datatype, shape=(2, 3), data=memoryview(bytes(6 * width))))
            with pytest.raises(InvalidRequest, match="input byte size mismatch for input 'x'"):
                tensors.check_size(Tensor(name="x", datatype=datatype, shape=(2,), data=memoryview(bytes(width))))
