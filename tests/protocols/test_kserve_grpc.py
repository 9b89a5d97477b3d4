"""KServe's gRPC: Triton's own messages become inferences, and responses become its messages."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tritonclient.grpc.service_pb2 import InferParameter, ModelInferRequest, ModelInferResponse

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.protocols import tensors
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor, RequestedOutput
from nbgen.protocols.kserve_grpc import EMPTY_FINAL, fill, parse_infer
from nbgen.tensor_spec import ModelSpec, TensorSpec

Change = Callable[[ModelInferRequest], object]


def parsed(*changes: Change, contents: Sequence[bytes] = ()) -> Inference:
    message = ModelInferRequest(id="7")
    for change in changes:
        change(message)
    return parse_infer(message, [memoryview(each) for each in contents])


def given(datatype: str, shape: list[int], **contents: Any) -> Change:
    """An input with its elements in one field, or nowhere."""

    def add(message: ModelInferRequest) -> None:
        item = message.inputs.add(name="X", datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(item.contents, field).extend(values)

    return add


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT64", "int64_contents", [-(2**63), 1]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT64", "uint64_contents", [2**64 - 1, 0]),
        ("FP32", "fp32_contents", [0.5, -1.0]),
        ("FP64", "fp64_contents", [0.1, 2.0]),
    ],
)
def test_elements_come_in_the_field_of_their_type(
    monkeypatch: pytest.MonkeyPatch, datatype: str, field: str, values: list[Any]
) -> None:
    monkeypatch.setattr(tensors, "ELEMENT_SLICE", 1)
    tensor = parsed(given(datatype, [2], **{field: values})).inputs["X"]
    assert (tensor.datatype, tensor.shape, tensors.values(tensor.data, datatype)) == (datatype, (2,), values)


def test_raw_contents_belong_to_the_inputs_in_order() -> None:
    def second(message: ModelInferRequest) -> None:
        message.inputs.add(name="Y", datatype="BYTES", shape=[2])

    texts = bytes(pack_bytes([b"a", b"bc"]))
    found = parsed(given("FP16", [1, 2]), second, contents=[b"abcd", texts]).inputs
    assert (bytes(found["X"].data), bytes(found["Y"].data)) == (b"abcd", texts)
    assert bytes(parsed(given("BYTES", [2], bytes_contents=[b"a", b"bc"])).inputs["X"].data) == texts


def with_parameter(name: str, **value: Any) -> Change:
    return lambda message: message.parameters[name].CopyFrom(InferParameter(**value))


def wanted(**value: Any) -> Change:
    def add(message: ModelInferRequest) -> None:
        output = message.outputs.add(name="O")
        if value:
            output.parameters["classification"].CopyFrom(InferParameter(**value))

    return add


def test_parameters_have_the_types_of_their_fields() -> None:
    changes = [
        with_parameter("a", bool_param=True),
        with_parameter("b", int64_param=-1),
        with_parameter("c", double_param=1.5),
        with_parameter("d", string_param="x"),
        with_parameter("timeout", int64_param=9),
        with_parameter("priority", uint64_param=1),
        with_parameter(EMPTY_FINAL, bool_param=True),
    ]
    found = parsed(*changes)
    assert (found.id, found.timeout_us, found.binary_outputs) == ("7", 9, True)
    assert found.parameters == {"a": True, "b": -1, "c": 1.5, "d": "x", "priority": 1}


def test_outputs_are_named_with_their_classes() -> None:
    assert parsed(wanted(int64_param=3)).outputs == [RequestedOutput("O", binary=True, classes=3)]
    assert parsed(wanted()).outputs == [RequestedOutput("O", binary=True)]


@pytest.mark.parametrize(
    ("changes", "contents", "words"),
    [
        ([given("FP32", [1], fp32_contents=[1])] * 2, [], "input 'X' already exists"),
        ([given("FP32", [1], int_contents=[1])], [], "datatype FP32 must be in fp32_contents"),
        ([given("FP16", [1], fp32_contents=[1])], [], "datatype FP16 must be in raw_input_contents"),
        ([given("FP32", [1], fp32_contents=[1], bool_contents=[True])], [], "must be in fp32_contents"),
        ([given("FP32", [1], fp32_contents=[1])], [b"abcd"], "must not be specified when using raw_input_contents"),
        ([given("FP32", [1])], [], "unable to find data for input tensor 'X'"),
        ([given("FP32", [1])], [b"abcd", b""], "more raw contents than inputs"),
        ([given("FP32", [2])], [b"abcd"], "'X'"),
        ([given("FP32", [-1])], [b"abcd"], "shape"),
        ([given("FP32", [2**62] * 10**5)], [b"abcd"], "100000 dimensions; at most 32"),
        ([given("BYTES", [2], bytes_contents=[b"a"])], [], "has 2 elements, and bytes_contents 1"),
        ([given("COMPLEX", [1])], [b"abcd"], "COMPLEX"),
        ([with_parameter("a")], [], "parameter 'a' has no value"),
        ([with_parameter("a", uint64_param=1)], [], "only 'priority' may be"),
        ([with_parameter("timeout", uint64_param=1)], [], "only 'priority' may be"),
        ([with_parameter(EMPTY_FINAL, string_param="true")], [], "expected bool_param"),
        ([with_parameter(EMPTY_FINAL, int64_param=1)], [], "expected bool_param"),
        ([wanted(), wanted()], [], "output 'O' already exists"),
        ([wanted(int64_param=0)], [], "expected int64_param above 0"),
        ([wanted(string_param="3")], [], "expected int64_param above 0"),
    ],
)
def test_what_does_not_add_up_is_refused(changes: list[Change], contents: list[bytes], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parsed(*changes, contents=contents)


@pytest.mark.parametrize(
    ("datatype", "count", "field", "value"),
    [("BYTES", 2**21 + 1, "bytes_contents", b""), ("INT64", 2**23 + 1, "int64_contents", 1)],
)
def test_elements_beyond_the_limit_are_refused_before_they_are_packed(
    datatype: str, count: int, field: str, value: Any
) -> None:
    message = ModelInferRequest()
    given(datatype, [count], **{field: [value] * count})(message)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=f"has {count} (string elements|elements of INT64)"):
            parse_infer(message, [])
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_response_is_put_into_its_message() -> None:
    spec = ModelSpec(name="m", inputs=(), outputs=(TensorSpec(name="O", datatype="INT32", dims=(2,)),))
    data = tensors.Binary([tensors.from_values([number], "INT32") for number in (1, 2)])
    response = InferenceResponse(model_name="m", model_version="3", outputs=[OutputTensor("O", "INT32", [2], data)])
    message = ModelInferResponse()
    ((first, second),) = fill(message, response, Inference(id="7", binary_outputs=True), spec)
    assert (message.model_name, message.model_version, message.id) == ("m", "3", "7")
    assert [(each.name, each.datatype, list(each.shape)) for each in message.outputs] == [("O", "INT32", [2])]
    assert bytes(first) + bytes(second) == b"\1\0\0\0\2\0\0\0"
