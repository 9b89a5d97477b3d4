"""Hostile gRPC messages hold up nobody else, and more than run at once take turns."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.conftest import Server
from tests.server.test_event_loop import MB, MODEL, nobody_waits, pytestmark, watch  # noqa: F401
from tests.server.triton import TOKEN_METADATA, grpc_address


def message(model: str, datatype: str, shape: list[int], contents: dict[str, Any]) -> service_pb2.ModelInferRequest:
    """A request with one tensor: its typed contents, or `raw` bytes."""
    request = service_pb2.ModelInferRequest(model_name=model)
    item = request.inputs.add(name="input_ids" if model == MODEL else "X", datatype=datatype, shape=shape)
    for name, value in contents.items():
        if name == "raw":
            request.raw_input_contents.append(value)
        else:
            getattr(item.contents, name).extend(value)
    return request


@pytest.mark.parametrize(
    ("model", "datatype", "shape", "contents", "words"),
    [
        ("echo", "FP32", [2**40], {"raw": bytes(64)}, "byte size mismatch"),
        ("echo", "FP32", [-1], {"raw": bytes(64)}, "Unable to parse 'shape'"),
        ("echo", "FP32", [2**40, 2**40], {"raw": bytes(64)}, "total element count"),
        ("echo", "FP32", [1] * 40, {"raw": bytes(4)}, "dimensions"),
        ("echo", "FP32", [3], {"fp32_contents": [1.0]}, "byte size mismatch"),
        ("echo", "FP32", [1], {"int_contents": [1]}, "must be in fp32_contents"),
        ("echo", "FP32", [1], {"fp32_contents": [1.0], "raw": bytes(4)}, "raw_input_contents"),
        ("echo", "FP32", [1], {}, "unable to find data"),
        ("echo", "FP16", [1], {"fp32_contents": [1.0]}, "raw_input_contents"),
        ("one_string", "BYTES", [1], {"raw": b"\xff\xff\xff\x7fa"}, "string elements are cut"),
        ("one_string", "BYTES", [16 * MB], {"raw": bytes(64 * MB)}, "string elements; at most"),
        (MODEL, "INT64", [8 * MB], {"raw": bytes(64 * MB)}, "input_ids has"),
        (MODEL, "INT64", [2], {"int64_contents": [5, 10**6]}, "out-of-vocabulary"),
        (MODEL, "INT64", [1], {"int64_contents": [-1]}, "out-of-vocabulary"),
        (MODEL, "INT64", [0], {"raw": b""}, "input_ids cannot be empty"),
        ("echo", "INT32", [2 * MB], {"int_contents": [7] * (2 * MB)}, "data-type is 'INT32'"),
    ],
    ids=range(16),
)
def test_hostile_messages_are_refused_while_others_are_served(
    server: Server,
    watch: subprocess.Popen[str],  # noqa: F811
    model: str,
    datatype: str,
    shape: list[int],
    contents: dict[str, Any],
    words: str,
) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with nobody_waits(watch), grpc.insecure_channel(grpc_address(server), options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failure:
            stub.ModelInfer(message(model, datatype, shape, contents), metadata=tuple(TOKEN_METADATA.items()))
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT, failure.value.details()
    assert words in failure.value.details()


def test_a_stream_of_messages_takes_turns(server: Server) -> None:
    """More requests than run at once are all answered, in order."""
    request = message("echo", "FP32", [2], {"raw": bytes(8)})

    def requests() -> Iterator[service_pb2.ModelInferRequest]:
        for number in range(600):
            request.id = str(number)
            yield request

    with grpc.insecure_channel(grpc_address(server)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(requests(), metadata=tuple(TOKEN_METADATA.items()))
        assert [int(answer.infer_response.id) for answer in answers] == list(range(600))
