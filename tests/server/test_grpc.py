"""KServe v2 over gRPC through Triton's own clients: unary, streaming, asyncio; the same models and secrets as HTTP."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import torch
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from transformers import AutoModelForCausalLM
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.server.conftest import Server, wait_for
from tests.server.triton import TOKEN_METADATA, flag, grpc_address, pending, tensor, text

MODEL = "long-llama"
Stub = service_pb2_grpc.GRPCInferenceServiceStub
METHODS = list(service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods)


class Grpc:
    """The server's gRPC port, and how to ask it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = grpc_address(server)

    def client(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.url)

    def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
        with self.client() as client:
            return client.infer(model, inputs, headers=TOKEN_METADATA, **options)


@pytest.fixture(scope="module")
def remote(server: Server) -> Grpc:
    return Grpc(server)


def numbers(value: int = 1) -> list[Any]:
    array = np.full((1, 16), value, np.int32)
    return [tensor(f"INPUT{index}", array, kind=triton) for index in (0, 1)]


def test_descriptions_equal_those_of_http(remote: Grpc) -> None:
    with remote.client() as client:
        ask: dict[str, Any] = {"headers": TOKEN_METADATA}
        assert client.is_server_live(**ask)
        assert client.is_server_ready(**ask)
        assert client.is_model_ready(MODEL, **ask)
        for method, path in (
            (client.get_model_metadata, f"v2/models/{MODEL}"),
            (client.get_model_config, f"v2/models/{MODEL}/config"),
        ):
            found, http = method(MODEL, as_json=True, **ask), remote.server.http.get(path).json()
            found = found.get("config", found)
            assert found["name"] == http["name"]
            key = "input" if "input" in http else "inputs"
            assert [item["name"] for item in found[key]] == [item["name"] for item in http[key]]
        assert client.get_server_metadata(**ask).name == "triton"
        assert {model.name for model in client.get_model_repository_index(**ask).models} >= {MODEL, "simple"}
        assert client.get_inference_statistics(MODEL, **ask).model_stats[0].name == MODEL
        assert client.get_log_settings(as_json=True, **ask)["settings"]["log_info"] == {"bool_param": True}
        assert client.get_trace_settings(as_json=True, **ask)["settings"]["trace_rate"]["value"] == ["1000"]
        assert not client.get_system_shared_memory_status(**ask).regions


@pytest.fixture
def stub(remote: Grpc) -> Iterator[Stub]:
    with grpc.insecure_channel(remote.url) as channel:
        yield Stub(channel)


def refused(method: Any, request: Any) -> str:
    """The words with which the method calls the request's argument invalid."""
    with pytest.raises(grpc.RpcError) as failure:
        method(request, metadata=tuple(TOKEN_METADATA.items()))
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(failure.value.details())


def test_log_settings_are_only_what_grpc_can_tell(remote: Grpc, stub: Stub) -> None:
    assert remote.server.http.post("v2/logging", json={"log_verbose_level": 2**32}).status_code == 400
    unset = service_pb2.LogSettingsRequest()
    unset.settings["log_info"].Clear()
    assert refused(stub.LogSettings, unset) == "parameter 'log_info' has no value"
    with remote.client() as client:
        highest = client.update_log_settings({"log_verbose_level": 2**32 - 1}, TOKEN_METADATA)
        assert highest.settings["log_verbose_level"].uint32_param == 2**32 - 1
        client.update_log_settings({"log_verbose_level": 0}, TOKEN_METADATA)


def test_settings_of_a_wrong_kind_or_number_are_refused(stub: Stub) -> None:
    trace = service_pb2.TraceSettingRequest()
    trace.settings["trace_rate"].value.extend(["1", "2"])
    assert "expected one value, got 2" in refused(stub.TraceSetting, trace)
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="nope")
    unload.parameters["unload_dependents"].string_param = "true"
    assert "'unload_dependents': expected a boolean" in refused(stub.RepositoryModelUnload, unload)


def test_logits_are_torchs_and_no_limit_cuts_them(remote: Grpc, long_model: Path) -> None:
    tokens = np.random.default_rng(0).integers(4, 260, 6000)
    result = remote.infer(
        MODEL, [tensor("input_ids", tokens, kind=triton)], outputs=[triton.InferRequestedOutput("logits")]
    )
    reference = AutoModelForCausalLM.from_pretrained(long_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor(tokens[None])).logits[0].numpy()
    np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=5e-3)


def test_modules_classes_and_typed_contents(remote: Grpc) -> None:
    assert remote.infer("simple", numbers(3)).as_numpy("OUTPUT0").tolist() == [[6] * 16]
    asked = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    assert remote.infer("simple", numbers(), outputs=asked).as_numpy("OUTPUT0").tolist() == [[b"2:0", b"2:1"]]
    request = service_pb2.ModelInferRequest(model_name="simple", id="typed")
    for name in ("INPUT0", "INPUT1"):
        item = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        item.contents.int_contents.extend(range(16))
    with grpc.insecure_channel(remote.url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request, metadata=tuple(TOKEN_METADATA.items()))
        assert answer.id == "typed"
        assert np.frombuffer(answer.raw_output_contents[0], np.int32).tolist() == [2 * n for n in range(16)]


@pytest.mark.parametrize(
    ("model", "inputs", "options", "status", "words"),
    [
        ("nope", numbers(), {}, "NOT_FOUND", "Request for unknown model"),
        ("simple", numbers()[:1], {}, "INVALID_ARGUMENT", "expected 2 inputs but got 1"),
        ("simple", numbers(), {"model_version": "9"}, "NOT_FOUND", "version 9"),
        ("simple", numbers(), {"model_version": "x"}, "INVALID_ARGUMENT", "version string"),
        (MODEL, [], {}, "INVALID_ARGUMENT", "but got 0 inputs"),
        (MODEL, [text("a", kind=triton), flag("stream", kind=triton)], {}, "INVALID_ARGUMENT", "streaming"),
    ],
)
def test_errors_have_their_statuses(
    remote: Grpc, model: str, inputs: list[Any], options: dict[str, Any], status: str, words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words) as failure:
        remote.infer(model, inputs, **options)
    assert failure.value.status() == f"StatusCode.{status}"


def test_nobody_is_served_without_a_secret(remote: Grpc) -> None:
    with remote.client() as client:
        for metadata in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(InferenceServerException) as failure:
                client.infer("simple", numbers(), headers=metadata)
            assert failure.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.is_server_live(headers={"authorization": f"token {remote.server.key}"})


def test_an_unknown_caller_cannot_make_the_server_hold_a_message(remote: Grpc) -> None:
    process = psutil.Process(remote.server.process.pid)
    before, options = process.memory_info().rss, [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(remote.url, options) as channel:
        for method in ("ModelInfer", "ServerLive", "ModelStreamInfer"):
            call = channel.stream_stream(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as failure:
                list(call(iter([bytes(60 * 2**20)])))
            assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert process.memory_info().rss - before < 16 * 2**20


def test_a_stream_carries_tokens_of_many_requests_and_survives_errors(remote: Grpc) -> None:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inputs = [
        text("hello", kind=triton),
        flag("stream", kind=triton),
        flag("ignore_eos", kind=triton),
        tensor("max_tokens", np.array([9], np.int32), kind=triton),
        tensor("temperature", np.array([0], np.float32), kind=triton),
    ]
    with remote.client() as client:
        client.start_stream(lambda result, error: found.put((result, error)), headers=TOKEN_METADATA)
        for index in range(4):
            client.async_stream_infer(MODEL, inputs, request_id=str(index))
        client.async_stream_infer("simple", numbers(), request_id="s")
        client.async_stream_infer("nope", numbers(), request_id="bad")
        client.stop_stream()
    texts: dict[str, bytes] = {}
    finals, errors = [], []
    while not found.empty():
        result, error = found.get()
        if error is not None:
            errors.append(str(error))
            continue
        response = result.get_response()
        if response.model_name == MODEL:
            texts[response.id] = texts.get(response.id, b"") + result.as_numpy("text_output")[0]
        if response.parameters["triton_final_response"].bool_param:
            finals.append(response.id)
    assert len(errors) == 1
    assert "unknown model" in errors[0]
    assert sorted(finals) == ["0", "1", "2", "3", "s"]
    assert len(set(texts.values())) == 1
    whole = remote.infer(MODEL, [*inputs[:1], *inputs[2:], flag("exclude_input_in_output", kind=triton)])
    assert whole.as_numpy("text_output")[0] == texts["0"]


def test_a_stream_is_one_however_it_is_asked_for(remote: Grpc) -> None:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inputs = [text("hello", kind=triton)]
    options = {"ignore_eos": True, "max_tokens": 2000, "temperature": 0}
    with remote.client() as client:
        client.start_stream(lambda result, error: found.put((result, error)), headers=TOKEN_METADATA)
        asked = {**options, "sampling_parameters": '{"stream": "True"}'}
        client.async_stream_infer(MODEL, inputs, request_id="a", parameters=asked)
        client.stop_stream()
    pieces = []
    while not found.empty():
        result, error = found.get()
        assert error is None
        pieces.append((result.as_numpy("text_output")[0], result.get_response().parameters["triton_final_response"]))
    assert len(pieces) > 1
    assert [final.bool_param for _, final in pieces] == [False] * (len(pieces) - 1) + [True]
    whole = remote.infer(MODEL, inputs, parameters={**options, "exclude_input_in_output": True})
    assert b"".join(piece for piece, _ in pieces) == whole.as_numpy("text_output")[0]


def test_answers_keep_their_order_across_errors_and_models_that_need_not(remote: Grpc) -> None:
    found: list[str] = []

    def note(result: Any, error: Any) -> None:
        found.append(result.get_response().id if error is None else "bad")

    with remote.client() as client:
        client.start_stream(note, headers=TOKEN_METADATA)
        client.async_stream_infer("slow", [tensor("X", np.full(1, 5, np.int64), kind=triton)], request_id="slow")
        client.async_stream_infer("nope", numbers(), request_id="bad")
        short = [text("hello", kind=triton), tensor("max_tokens", np.array([1], np.int32), kind=triton)]
        client.async_stream_infer(MODEL, short, request_id="model")
        client.async_stream_infer("simple", numbers(), request_id="simple")
        client.stop_stream()
    assert [id for id in found if id != "model"] == ["slow", "bad", "simple"]
    assert "model" in found


def test_the_asyncio_client_and_thirty_two_at_once(remote: Grpc) -> None:
    async def ask() -> list[Any]:
        async with triton_aio.InferenceServerClient(remote.url) as client:
            calls = [client.infer("simple", numbers(n), headers=TOKEN_METADATA) for n in range(32)]
            return [result.as_numpy("OUTPUT0")[0, 0] for result in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [2 * n for n in range(32)]
    with ThreadPoolExecutor(32) as pool:
        answers = pool.map(lambda n: remote.infer("simple", numbers(n)).as_numpy("OUTPUT0")[0, 0], range(32))
    assert list(answers) == [2 * n for n in range(32)]


LONG = [
    text("a", kind=triton),
    flag("ignore_eos", kind=triton),
    tensor("max_tokens", np.array([15_000], np.int32), kind=triton),
]


def test_a_cancelled_call_ends_its_request(remote: Grpc) -> None:
    with remote.client() as client, pytest.raises(InferenceServerException):
        client.infer(MODEL, LONG, headers=TOKEN_METADATA, client_timeout=0.5)
    remote.server.idle()


def test_a_call_that_others_cancel_says_so(remote: Grpc) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(remote.infer, MODEL, LONG)
        wait_for(lambda: pending(remote.server, MODEL) == 1, "it runs")
        remote.server.http.post("abort_request", json={"abort_all": True})
        with pytest.raises(InferenceServerException, match=r"CANCELLED\] the request was cancelled"):
            answer.result()


def test_a_message_without_tensors_may_only_be_so_large(remote: Grpc) -> None:
    with grpc.insecure_channel(remote.url, [("grpc.max_send_message_length", -1)]) as channel:
        settings = channel.unary_unary("/inference.GRPCInferenceService/LogSettings")
        with pytest.raises(grpc.RpcError, match="has 1048577 bytes; at most 1048576") as refused:
            settings(bytes(2**20 + 1), metadata=tuple(TOKEN_METADATA.items()))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_health_of_grpcs_own_kind(remote: Grpc) -> None:
    with grpc.insecure_channel(remote.url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", metadata=tuple(TOKEN_METADATA.items())) == b"\x08\x01"


@pytest.mark.parametrize("method", METHODS, ids=[method.name for method in METHODS])
def test_what_is_no_message_is_refused_by_its_name(remote: Grpc, method: Any) -> None:
    with grpc.insecure_channel(remote.url) as channel:
        path, metadata = f"/{method.containing_service.full_name}/{method.name}", list(TOKEN_METADATA.items())
        if method.client_streaming:
            (answer,) = channel.stream_stream(path)(iter([b"\xff\xff\xff"]), metadata=metadata)
            words = service_pb2.ModelStreamInferResponse.FromString(answer).error_message
        else:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(b"\xff\xff\xff", metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            words = refused.value.details()
        assert words in (f"the message is no {method.input_type.name}", "the message is cut short")
    assert "DecodeError" not in remote.server.log.read_text()
