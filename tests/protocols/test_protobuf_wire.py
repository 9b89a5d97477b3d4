"""Protobuf's encoding against the generated classes: fields taken out and put back, and bytes that are no message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from nbgen.errors import InvalidRequest
from nbgen.protocols.kserve_grpc import RAW_INPUTS, RAW_OUTPUTS
from nbgen.protocols.protobuf_wire import appended, split


def request(contents: list[bytes]) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m" * 200, id="7", raw_input_contents=contents)
    message.inputs.add(name="X", datatype="FP32", shape=[1, -1]).contents.fp32_contents.extend([1.5, 2])
    message.parameters["a"].double_param = 1.5
    return message


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_contents_are_taken_out(contents: list[bytes]) -> None:
    rest, found = split(request(contents).SerializeToString(), RAW_INPUTS)
    assert [bytes(item) for item in found] == contents
    assert ModelInferRequest.FromString(rest) == request([])


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=4))
def test_contents_are_put_behind(contents: list[list[bytes]]) -> None:
    message = ModelInferResponse(model_name="m", id="7")
    pieces = appended(message.SerializeToString(), RAW_OUTPUTS, [[memoryview(p) for p in item] for item in contents])
    found = ModelInferResponse.FromString(b"".join(pieces))
    assert list(found.raw_output_contents) == [b"".join(item) for item in contents]
    assert (found.model_name, found.id) == ("m", "7")


@given(st.binary(max_size=60))
def test_whatever_comes_is_split_or_refused(message: bytes) -> None:
    try:
        rest, contents = split(message, RAW_INPUTS)
    except InvalidRequest:
        return
    assert len(rest) + sum(map(len, contents)) <= len(message)


@pytest.mark.parametrize(
    "message",
    [b"\x3a\x05abcd", b"\x3a", b"\xff" * 11, b"\x0d\0\0", b"\x0b", b"\x08\x80", b"\x08\1" * 2**17],
    ids=range(7),
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest):
        split(message, RAW_INPUTS)
