"""KServe v2's requests and answers without a server: what is taken, what is refused and in which words."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest

from nbgen.bytes_elements import unpack_bytes
from nbgen.errors import InvalidRequest, NbgenError, Unsupported
from nbgen.protocols import kserve, kserve_answer, kserve_checks
from nbgen.protocols.classification import classified
from nbgen.protocols.inference import Inference, InferenceResponse, OutputTensor, RequestedOutput
from nbgen.protocols.kserve_settings import LogSettings, TraceSettings
from nbgen.protocols.tensors import Binary
from nbgen.tensor_spec import ModelSpec, TensorSpec

SPEC = ModelSpec(
    name="m",
    inputs=(
        TensorSpec(name="A", datatype="INT32", dims=(2,)),
        TensorSpec(name="S", datatype="BYTES", dims=(-1,), optional=True),
    ),
    outputs=(TensorSpec(name="Y", datatype="FP32", dims=(-1,)),),
)
GOOD = {"name": "A", "shape": [2], "datatype": "INT32", "data": [1, 2]}


def parse(body: Any, header: str | None = None, spec: ModelSpec = SPEC) -> Inference:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return kserve_checks.checked(kserve.parse_infer(memoryview(content), header, spec), spec)


def inputs(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in (GOOD | changes).items() if value is not ...}]}


REFUSED: list[tuple[Any, int, str]] = [
    (b"", 400, "failed to parse"),
    (b"{", 400, "failed to parse"),
    (b"[]", 400, "failed to parse"),
    (b"\xff", 400, "failed to parse"),
    (b"[" * 250_000, 400, "failed to parse"),
    *[
        (json.dumps(inputs(datatype="FP32", data=[1.0, float(word)])).encode(), 400, f"{word} is not a finite number")
        for word in ("NaN", "Infinity", "-Infinity")
    ],
    (b'{"inputs":[{"name":' + b"[" * 250_000, 400, "failed to parse"),
    (json.dumps(inputs(name="~")).encode().replace(b"~", b"\xff"), 400, "a text in it is not UTF-8"),
    (json.dumps(inputs(datatype="BYTES", data=["~"])).encode().replace(b"~", b"\xff"), 400, "input 'A': a text in it"),
    (json.dumps(inputs(parameters={"~": 1})).encode().replace(b"~", b"\xff"), 400, "'parameters': a text in it"),
    ({}, 400, "inputs"),
    ({"inputs": {}}, 400, "inputs"),
    (inputs(name=...), 400, "name"),
    (inputs(name=5), 400, "name"),
    (inputs(datatype=...), 400, "datatype"),
    (inputs(datatype="FP8"), 400, "unknown datatype 'FP8'"),
    (inputs(datatype="FP16"), 400, "FP16"),
    (inputs(datatype="BF16"), 400, "BF16"),
    (inputs(shape=...), 400, "shape"),
    (inputs(shape=5), 400, "shape"),
    (inputs(shape=[-1]), 500, "Unable to parse 'shape'"),
    (inputs(shape=[1.5]), 500, "non-unsigned-integer as unsigned-integer"),
    (inputs(shape=["1"]), 500, "Unable to parse 'shape'"),
    (inputs(shape=[2**40, 2**40]), 400, "causes total element count to exceed maximum size of"),
    (inputs(shape=[0, 2**64 - 1], data=[]), 400, "causes total element count to exceed maximum size of"),
    (inputs(shape=[2**62]), 400, "byte size overflow for input"),
    (inputs(shape=[2**28]), 400, "exceeds the maximum allowed value"),
    (inputs(shape=[1] * 40), 400, "40 dimensions"),
    (inputs(data=...), 400, "Input must set only one of"),
    (inputs(parameters={"binary_data_size": 8}), 400, "Input must set only one of"),
    (inputs(data=..., parameters={"binary_data_size": -1}), 400, "binary_data_size"),
    (inputs(data=..., parameters={"binary_data_size": 1.5}), 400, "binary_data_size"),
    (inputs(data=..., parameters={"binary_data_size": 8}), 400, "expecting 8 additional bytes"),
    (inputs(data=..., parameters={"shared_memory_region": "r"}), 404, "Unable to find shared memory region"),
    (inputs(data=5), 400, "non-array as array"),
    (inputs(data=[1]), 400, "Failed to parse 'data' field: shape does not match true shape"),
    (inputs(data=[1, 2, 3]), 400, "Unable to parse 'data': Shape does not match true shape"),
    (inputs(data=["a", "b"]), 400, "input 'A': attempt to access JSON non-signed-integer"),
    (inputs(data=[1, 2**31]), 400, "input 'A': a value is out of range of INT32"),
    ({"inputs": [GOOD, GOOD]}, 400, "input 'A' already exists in request"),
    ({"inputs": [GOOD, GOOD | {"name": "B"}]}, 400, "unexpected inference input 'B'"),
    ({"inputs": []}, 400, "expected number of inputs between 1 and 2 but got 0 inputs"),
    (inputs(datatype="INT64"), 400, "data-type is 'INT64', but model 'm' expects 'INT32'"),
    (inputs(shape=[1, 1], data=[1]), 400, "unexpected shape for input 'A'"),
    ({"inputs": [GOOD, {"name": "S", "shape": [2], "datatype": "BYTES", "data": ["a"]}]}, 400, "string elements"),
    (inputs() | {"outputs": [{"name": "Y"}, {"name": "Y"}]}, 400, "output 'Y' already exists in request"),
    (inputs() | {"outputs": [{"name": "Z"}]}, 400, "unexpected inference output 'Z'"),
    (inputs() | {"outputs": [{"name": "Y", "parameters": {"classification": -1}}]}, 400, "classification"),
    (inputs() | {"outputs": [{"name": "Y", "parameters": {"binary_data": 1}}]}, 400, "binary_data"),
    (inputs() | {"outputs": [{"name": "Y", "parameters": {"shared_memory_region": "r"}}]}, 404, "shared memory"),
    (inputs() | {"parameters": {"triton_x": 1}}, 400, "reserved for Triton usage"),
    (inputs() | {"parameters": {"priority": "1"}}, 400, "Unable to parse 'priority'"),
    (inputs() | {"parameters": {"timeout": -1}}, 400, "Unable to parse 'timeout'"),
    (inputs() | {"parameters": {"sequence_id": 1.5}}, 400, "Unable to parse 'sequence_id'"),
    (inputs() | {"parameters": {"sequence_start": 1}}, 400, "Unable to parse 'sequence_start'"),
    (inputs() | {"parameters": {"binary_data_output": 1}}, 400, "Unable to parse 'binary_data_output'"),
    (inputs() | {"parameters": {"x": {}}}, 400, "parameter 'x' has invalid type"),
]


@pytest.mark.parametrize(("body", "status", "words"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(body: Any, status: int, words: str) -> None:
    with pytest.raises(NbgenError) as refusal:
        parse(body)
    assert words in refusal.value.message
    assert refusal.value.status == status


@pytest.mark.parametrize("part", [{"data": "~"}, {"parameters": {"a": "~"}}])
def test_a_part_of_any_depth_is_taken_or_refused(part: dict[str, Any]) -> None:
    for depth in range(500, 1000):  # before Python 3.12 a part may be a little less deep than the body around it
        body = json.dumps(inputs(**part)).replace('"~"', "[" * depth + "]" * depth)
        with contextlib.suppress(InvalidRequest):
            parse(body.encode())


def test_what_is_taken() -> None:
    fields = {"id": "7", "parameters": {"priority": 1, "sequence_id": "s", "x": 1.5}, "more": 1}
    found = parse(inputs(shape=[1, 2], data=[[1], [2]]) | fields)
    assert found.id == "7"
    assert found.parameters == {"priority": 1, "sequence_id": "s", "x": 1.5}
    assert found.inputs["A"].shape == (2,), "leading ones beyond the rank are dropped"
    assert np.frombuffer(found.inputs["A"].data, np.int32).tolist() == [1, 2]


def test_what_reaches_a_limit_is_taken() -> None:
    assert parse(inputs(shape=[1] * 31 + [2])).inputs["A"].shape == (2,)
    fields = {f"p{number}": number for number in range(kserve.MAX_PARAMETERS)}
    assert len(parse(inputs() | {"parameters": fields}).parameters) == kserve.MAX_PARAMETERS
    with pytest.raises(InvalidRequest, match="257 parameters; at most 256"):
        parse(inputs() | {"parameters": fields | {"more": 1}})
    with pytest.raises(InvalidRequest, match="more than 128 tensors"):
        parse({"inputs": [GOOD] * (kserve.MAX_TENSORS + 1)})


def test_how_long_and_in_which_form() -> None:
    plain = parse(inputs())
    assert (plain.timeout_us, plain.binary_outputs) == (0, False)
    asked = parse(inputs() | {"parameters": {"timeout": 7, "binary_data_output": True, "x": 1}})
    assert (asked.timeout_us, asked.binary_outputs, asked.parameters) == (7, True, {"x": 1})


@pytest.mark.parametrize(
    ("header", "size", "length"), [(None, 9, 9), ("4", 9, 4), (" +4 bytes", 9, 4), ("9", 9, 9), ("0", 9, 0)]
)
def test_where_the_json_ends(header: str | None, size: int, length: int) -> None:
    assert kserve.header_length(header, size) == length


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("x", "got: x"),
        ("2147483648", "out of range"),
        ("10", "in range"),
        ("-1", "in range"),
        ("9" * 30, "out of range"),
    ],
)
def test_where_it_cannot_end(header: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        kserve.header_length(header, 9)


@pytest.mark.parametrize("header", ["20", "5000"])
def test_a_length_of_another_request_is_told_as_what_it_may_be(header: str) -> None:
    with pytest.raises(InvalidRequest, match="tritonclient leaves it in a headers= dictionary"):
        parse(inputs(), header)
    with pytest.raises(InvalidRequest) as refusal:
        parse(b"{")
    assert "headers=" not in refusal.value.message


def test_numbers_of_64_bits_are_integers_and_larger_ones_doubles() -> None:
    found = [kserve.parameter("x", value) for value in (2**63 - 1, -(2**63), 2**63, True)]
    assert found == [2**63 - 1, -(2**63), float(2**63), True]
    assert list(map(type, found)) == [int, int, float, bool]


def test_json_and_binary_inputs_mix_in_order() -> None:
    body = (
        json.dumps(
            {
                "inputs": [
                    {"name": "S", "shape": [1], "datatype": "BYTES", "data": ["x"]},
                    GOOD | {"parameters": {"binary_data_size": 8}},
                ]
            }
        )
        .replace('"data": [1, 2], ', "")
        .encode()
    )
    found = parse(body + np.array([3, 4], np.int32).tobytes(), str(len(body)))
    assert np.frombuffer(found.inputs["A"].data, np.int32).tolist() == [3, 4]


@pytest.mark.parametrize(
    ("dims", "datatype", "body", "words"),
    [
        ((-1,), "FP32", bytes(32), ""),
        ((2, -1), "FP32", bytes(32), ""),
        ((1,), "BYTES", b"any", ""),
        ((-1, -1), "FP32", bytes(32), "more than one variable-sized dimension"),
        ((2,), "BYTES", b"any", "the model must have input shape [1]"),
        ((3,), "FP32", bytes(32), "byte size mismatch"),
        ((-1,), "FP32", bytes(3), "Expected 4, got 3"),
    ],
)
def test_raw_bodies(dims: tuple[int, ...], datatype: str, body: bytes, words: str) -> None:
    spec = ModelSpec(name="r", inputs=(TensorSpec(name="X", datatype=datatype, dims=dims),), outputs=())
    if words:
        with pytest.raises(InvalidRequest) as refusal:
            parse(body, "0", spec)
        assert words in refusal.value.message
    else:
        assert parse(body, "0", spec).binary_outputs


# --- answers


def response(array: np.ndarray, datatype: str = "FP32") -> InferenceResponse:
    data = Binary([memoryview(array.tobytes())])
    return InferenceResponse(
        model_name="m", model_version="1", outputs=[OutputTensor("Y", datatype, list(array.shape), data)]
    )


def test_an_answer_is_compact_and_keeps_its_order() -> None:
    answer = kserve_answer.infer_answer(response(np.array([[1, 2.5]], np.float32)), Inference(id="i"), SPEC)
    assert b"".join(answer.body) == (
        b'{"id":"i","model_name":"m","model_version":"1","outputs":'
        b'[{"name":"Y","datatype":"FP32","shape":[1,2],"data":[1.0,2.5]}]}'
    )
    assert answer.json_length is None


def test_an_empty_binary_output_needs_no_header() -> None:
    inference = Inference(outputs=[RequestedOutput("Y", binary=True)])
    answer = kserve_answer.infer_answer(response(np.zeros(0, np.float32)), inference, SPEC)
    assert answer.content_type == "application/json"
    assert json.loads(b"".join(answer.body))["outputs"][0]["parameters"] == {"binary_data_size": 0}


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("", "identity"),
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip;q=0", "identity"),
        ("gzip;q=x, deflate", "deflate"),
        ("br, *", "identity"),
        ("identity, gzip", "identity"),
        ("gzip, deflate, br", "gzip"),
    ],
)
def test_how_an_answer_is_compressed(header: str, chosen: str) -> None:
    assert kserve_answer.accepted_encoding(header) == chosen


def test_compressed_bodies_come_back() -> None:
    body = [b"a" * 1000, b"b" * 1000]
    for encoding in ("gzip", "deflate"):
        packed = b"".join(kserve_answer.compressed(iter(body), encoding))
        assert bytes(kserve_answer.decompressed(memoryview(packed), 2000)) == b"".join(body)
        with pytest.raises(InvalidRequest, match="exceeds the maximum"):
            kserve_answer.decompressed(memoryview(packed), 1999)
        for more in (packed, b"x"):
            with pytest.raises(InvalidRequest, match=f"{len(more)} bytes follow the compressed body's end"):
                kserve_answer.decompressed(memoryview(packed + more), 5000)


@pytest.mark.parametrize(
    ("array", "datatype", "words"),
    [
        (np.array([0.5, 15.3495661, -1], np.float32), "FP32", [b"15.349566:1:b", b"0.500000:0:a"]),
        (np.array([3, -7, 9], np.int64), "INT64", [b"9:2", b"3:0:a"]),
        (np.array([3, 2**64 - 1, 9], np.uint64), "UINT64", [b"18446744073709551615:1:b", b"9:2"]),
        (np.array([np.nan, 1, 1], np.float32), "FP32", [b"1.000000:1:b", b"1.000000:2"]),
        (np.array([np.nan, -np.inf, 1], np.float32), "FP32", [b"1.000000:2", b"-inf:1:b"]),
    ],
)
def test_classes_are_the_largest_first(array: np.ndarray, datatype: str, words: list[bytes]) -> None:
    spec = TensorSpec(name="Y", datatype=datatype, labels=("a", "b"))
    output = response(array, datatype).outputs[0]

    found = classified(output, spec, 2, batched=False)
    assert (found.datatype, found.shape, unpack_bytes(found.data.joined())) == ("BYTES", [2], words)
    batched = classified(output._replace(shape=[3, 1]), spec, 5, batched=True)
    assert batched.shape == [3, 1]


@pytest.mark.parametrize(("datatype", "size"), [("BOOL", 2), ("FP16", 2), ("FP32", 1_000_001)])
def test_some_outputs_have_no_classes(datatype: str, size: int) -> None:
    output = OutputTensor("Y", datatype, [size], Binary([memoryview(bytes(size * 4))]))
    with pytest.raises(InvalidRequest, match="class result not available"):
        classified(output, TensorSpec(name="Y", datatype=datatype), 1, batched=False)


def test_a_tensor_that_json_cannot_carry_is_refused() -> None:
    spec = ModelSpec(name="m", inputs=(), outputs=(TensorSpec(name="Y", datatype="FP16", dims=(-1,)),))
    with pytest.raises(InvalidRequest, match="FP16"):
        kserve_answer.infer_answer(response(np.zeros(2, np.float16), "FP16"), Inference(), spec)


# --- settings


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"log_file": "x"}, Unsupported),
        ({"log_info": 1}, InvalidRequest),
        ({"log_verbose_level": -1}, InvalidRequest),
        ({"log_verbose_level": 2**32}, InvalidRequest),
        ({"log_verbose_level": True}, InvalidRequest),
        ({"log_format": "x"}, InvalidRequest),
        ({"other": 1}, InvalidRequest),
    ],
)
def test_log_settings_change_whole_or_not_at_all(changes: dict[str, Any], error: type[NbgenError]) -> None:
    settings = LogSettings()
    before = dict(settings.fields)
    with pytest.raises(error):
        settings.update({"log_warning": False, **changes})
    assert settings.fields == before
    settings.update({"log_file": None, "log_format": "ISO8601"})
    assert settings.fields["log_format"] == "ISO8601"


def test_trace_settings_are_inherited_until_set() -> None:
    settings = TraceSettings()
    settings.update({"trace_rate": "7"}, "m")
    settings.update({"trace_rate": "9", "trace_level": ["TIMESTAMPS"]})
    assert settings.of("m")["trace_rate"] == "7"
    assert settings.of("m")["trace_level"] == ["TIMESTAMPS"]
    settings.update({"trace_rate": None}, "m")
    assert settings.of("m")["trace_rate"] == "9"
    for wrong in ({"trace_count": "-2"}, {"trace_rate": "1.5"}, {"trace_rate": 5}, {"trace_level": ["X"]}, {"x": "1"}):
        with pytest.raises(InvalidRequest):
            settings.update(wrong)
    with pytest.raises(Unsupported):
        settings.update({"trace_file": "x"})
