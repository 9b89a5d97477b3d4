"""Plain torch modules as models, asked with Triton's clients and curl: numbers, batches, labels, faults, crashes."""

from __future__ import annotations

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server.conftest import TOKEN, Server, wait_for
from tests.server.triton import ECHO, ECHO_SOURCE, add_model, client, counts, gathering, image_module, pending, tensor

NUMBERS = ",".join(map(str, range(1, 17)))
ONE_LINE_SOURCE = """
import gc, sys, torch

class Model(torch.nn.Module):
    def forward(self, X):
        {forward}
"""
#: Modules that cannot be loaded, and why.
BROKEN = {
    "raises": ("raise OSError('/a/private/path')", "raises cannot be loaded (OSError); the server's log says why"),
    "unreadable": ("class Model", "unreadable cannot be loaded (SyntaxError); the server's log says why"),
    "exits": ("import os; os._exit(3)", "the process for modules stopped (exit code 3)"),
    "nameless": ("class Other: pass", "model.py of nameless defines no class Model"),
    "foreign": ("class Model: pass", "Model in model.py of foreign is no torch.nn.Module"),
    "unsigned": (
        ONE_LINE_SOURCE.format(forward="pass") + "    forward = dict",
        "unsigned cannot be loaded (ValueError); the server's log says why",
    ),
}
CURL_BODY = f"""{{
  "inputs": [
    {{"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [{NUMBERS}]}},
    {{"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [{NUMBERS}]}}
  ],
  "outputs": [{{"name": "OUTPUT0"}}, {{"name": "OUTPUT1"}}]
}}"""


def slow(tenths: int, **parameters: int) -> dict[str, Any]:
    """A request that `slow` takes so many tenths of a second for."""
    tensor = {"name": "X", "shape": [1], "datatype": "INT64", "data": [tenths]}
    return {"inputs": [tensor], "parameters": parameters}


def post(server: Server, model: str, body: str | bytes, **headers: str) -> Any:
    return server.http.post(f"v2/models/{model}/infer", content=body, headers=headers)


@pytest.mark.parametrize("place", ["server", "jupyter"])
def test_curl_adds_and_subtracts(place: str, request: pytest.FixtureRequest) -> None:
    """Standing alone, and inside Jupyter below a base URL with no language model at all."""
    server: Server = request.getfixturevalue(place)
    url = f"{server.root}nbgen/v2/models/simple/versions/1/infer"
    headers = ["-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {TOKEN}"]
    said = subprocess.run(
        ["curl", "-sS", "-X", "POST", url, *headers, "-d", CURL_BODY], capture_output=True, check=True
    )
    doubled = ",".join(str(2 * number) for number in range(1, 17))
    zeros = ",".join(["0"] * 16)
    assert said.stdout.decode() == (
        '{"model_name":"simple","model_version":"1","outputs":['
        f'{{"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"data":[{doubled}]}},'
        f'{{"name":"OUTPUT1","datatype":"INT32","shape":[1,16],"data":[{zeros}]}}]}}'
    )


def test_the_image_classifier_answers_as_the_module_does(server: Server) -> None:
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    input_tensor = triton.InferInput("data_0", image.shape, "FP32")
    input_tensor.set_data_from_numpy(image)
    output = triton.InferRequestedOutput("fc6_1", class_count=5)
    with client(server) as found:
        result = found.infer(model_name="densenet_onnx", inputs=[input_tensor], outputs=[output])
        whole = found.infer("densenet_onnx", [input_tensor]).as_numpy("fc6_1")
        config = found.get_model_config("densenet_onnx")
    with torch.inference_mode():
        expected = image_module()(torch.from_numpy(image)).flatten()
    np.testing.assert_allclose(whole, expected.numpy(), rtol=1e-5)
    values, indices = expected.topk(5)
    words = [word.decode().split(":") for word in result.as_numpy("fc6_1")]
    assert [(int(index), label) for _, index, label in words] == [(i, f"LABEL {i}") for i in indices.tolist()]
    assert [float(value) for value, _, _ in words] == pytest.approx(values.tolist(), abs=1e-5)
    assert config["input"][0]["format"] == "FORMAT_NCHW"
    assert config["output"][0]["reshape"] == {"shape": [1, 10, 1, 1]}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("size", [0, 1, 1000, 1_000_000])
def test_what_goes_in_comes_out(server: Server, binary: bool, size: int) -> None:
    array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    with client(server, network_timeout=120) as found:
        outputs = [triton.InferRequestedOutput("Y", binary_data=binary)]
        result = found.infer("echo", [tensor("X", array, binary=binary)], outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("Y"), array)


def test_what_is_not_finite_survives(server: Server) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    with client(server) as found:
        for binary in (True, False):
            outputs = [triton.InferRequestedOutput("Y", binary_data=binary)]
            np.testing.assert_array_equal(
                found.infer("echo", [tensor("X", array)], outputs=outputs).as_numpy("Y"), array
            )


def test_halves_travel_as_bytes_only(server: Server) -> None:
    array = np.array([1.5, -2], np.float16)
    with client(server) as found:
        np.testing.assert_array_equal(found.infer("echo_half", [tensor("X", array)]).as_numpy("Y"), array)
        with pytest.raises(InferenceServerException, match="FP16"):
            found.infer(
                "echo_half", [tensor("X", array)], outputs=[triton.InferRequestedOutput("Y", binary_data=False)]
            )
    body = '{"inputs":[{"name":"X","shape":[1],"datatype":"FP16","data":[1]}]}'
    assert post(server, "echo_half", body).status_code == 400


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("all_binary", [False, True])
def test_each_output_comes_as_it_was_asked_for(server: Server, asked: bool, all_binary: bool) -> None:
    """`binary_data_output` is for outputs that are not named."""
    named = f',"outputs":[{{"name":"Y","parameters":{{"binary_data":{str(asked).lower()}}}}}]'
    for outputs, binary in ((named, asked), ("", all_binary)):
        body = (
            f'{{"parameters":{{"binary_data_output":{str(all_binary).lower()}}},'
            f'"inputs":[{{"name":"X","shape":[2],"datatype":"FP32","data":[[1],[2]]}}]{outputs}}}'
        )
        answer = post(server, "echo", body)
        assert answer.headers["content-type"] == ("application/octet-stream" if binary else "application/json")
        assert ("inference-header-content-length" in answer.headers) == binary
        if binary:
            assert answer.content.endswith(np.array([1, 2], np.float32).tobytes())
        else:
            assert answer.json()["outputs"][0] == {"name": "Y", "datatype": "FP32", "shape": [2], "data": [1, 2]}


def test_a_raw_body_is_the_only_input(server: Server) -> None:
    array = np.arange(8, dtype=np.float32)
    answer = post(server, "echo", array.tobytes(), **{"Inference-Header-Content-Length": "0"})
    assert answer.status_code == 200
    assert answer.content.endswith(array.tobytes())
    refused = post(server, "simple", array.tobytes(), **{"Inference-Header-Content-Length": "0"})
    assert "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in" in refused.json()["error"]
    large = post(server, "echo", b"\0" * (64 * 2**20 + 128), **{"Inference-Header-Content-Length": "0"})
    assert (large.status_code, "exceeds the maximum allowed value" in large.text) == (400, True)


def test_waiting_requests_are_computed_together(server: Server) -> None:
    before = counts(server, "echo_batch")

    def ask(seed: int) -> None:
        array = np.random.default_rng(seed).random((1 + seed % 3, 5)).astype(np.float32)
        with client(server) as found:
            np.testing.assert_array_equal(found.infer("echo_batch", [tensor("X", array)]).as_numpy("Y"), array)

    ask(0)
    with ThreadPoolExecutor(32) as pool:
        with gathering(server, "echo_batch", 32):
            answers = pool.map(ask, range(32))
        list(answers)
    after = counts(server, "echo_batch")
    entries = 1 + sum(1 + seed % 3 for seed in range(32))
    assert after["inference_count"] - before["inference_count"] == entries
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 33
    executions = after["execution_count"] - before["execution_count"]
    assert executions < 33
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    assert max(batch["batch_size"] for batch in after["batch_stats"]) > 3


@pytest.mark.parametrize("width", [15, 18])
def test_numbers_that_do_not_fill_the_shape(server: Server, width: int) -> None:
    """Whole error bodies, with one input only: data are looked at before the inputs are counted."""
    numbers = ",".join(map(str, range(width)))
    body = f'{{"inputs":[{{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":[{numbers}]}}]}}'
    answer = post(server, "simple", body)
    few = '{"error":"Failed to parse \'data\' field: shape does not match true shape"}'
    many = "{\"error\":\"Unable to parse 'data': Shape does not match true shape of 'data' field\"}"
    assert (answer.status_code, answer.text) == (400, few if width < 16 else many)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([[1, 17], [1, 16]], "Expected [-1,16], got [1,17]"),
        ([[1, 16]], "expected 2 inputs but got 1 inputs for model 'simple'"),
    ],
)
def test_shapes_are_checked_before_the_module_sees_them(server: Server, shapes: list[list[int]], words: str) -> None:
    inputs = [tensor(f"INPUT{index}", np.zeros(shape, np.int32)) for index, shape in enumerate(shapes)]
    with client(server) as found, pytest.raises(InferenceServerException, match=words.replace("[", r"\[")):
        found.infer("simple", inputs)


def test_leading_ones_are_dropped_and_generate_works_on_any_model(server: Server) -> None:
    inputs = [tensor(f"INPUT{index}", np.ones((1, 1, 16), np.int32)) for index in (0, 1)]
    with client(server) as found:
        assert found.infer("simple", inputs).as_numpy("OUTPUT0").shape == (1, 16)
    body = {"INPUT0": list(range(16)), "INPUT1": [1] * 16, "id": "x", "more": 1}
    answer = server.http.post("v2/models/simple/generate", json=body).json()
    assert answer["OUTPUT0"] == [number + 1 for number in range(16)]
    assert answer["id"] == "x"
    short = server.http.post("v2/models/simple/generate", json={**body, "INPUT0": [1] * 15})
    assert (short.status_code, "can not convert" in short.text) == (400, True)


def test_a_module_that_fails_or_exits_does_so_alone_and_garbage_is_collected(tmp_path: Path) -> None:
    model = ("--NbgenApp.model=/nonexistent/model", "--NbgenApp.autoload=False")
    modules = tmp_path / "models"
    add_model(modules, "echo_batch", ECHO.format(datatype="FP32", batch=32, delay=50_000), ECHO_SOURCE.format(sleep=0))
    config, ones = ECHO.format(datatype="FP32", batch=0, delay=0), np.ones(1, np.float32)
    add_model(modules, "broken", config, "raise OSError('/a/private/path')")
    for name, forward in {"leaves": "sys.exit()", "collects": "return X * gc.isenabled()"}.items():
        add_model(modules, name, config, ONE_LINE_SOURCE.format(forward=forward))
    add_model(modules, "never_comes", config, "import sys; sys.exit()")
    server = Server(tmp_path, *model, f"--NbgenApp.model_repository={modules}")
    try:
        with client(server, concurrency=8) as found:
            index = {entry["name"]: entry for entry in found.get_model_repository_index()}
            assert {(index[name]["state"], index[name]["reason"]) for name in ("broken", "echo_batch")} == {
                ("READY", "not loaded: its next request loads it")
            }
            assert psutil.Process(server.process.pid).children() == [], (
                "to know more takes a process, which nobody needs"
            )
            arrays = [np.full((1, 2), value, np.float32) for value in (1, 13, 2)]
            waiting = [found.async_infer("echo_batch", [tensor("X", array)]) for array in arrays]
            np.testing.assert_array_equal(waiting[0].get_result().as_numpy("Y"), arrays[0])
            np.testing.assert_array_equal(waiting[2].get_result().as_numpy("Y"), arrays[2])
            with pytest.raises(InferenceServerException, match=r"failed \(ValueError\)") as failure:
                waiting[1].get_result()
            assert failure.value.status() == "500"
            with pytest.raises(InferenceServerException, match="failed to load 'broken'") as broken:
                found.infer("broken", [tensor("X", arrays[0][0])])
            assert "private" not in str(failure.value) + str(broken.value)
            index = {entry["name"]: entry for entry in found.get_model_repository_index()}
            assert index["broken"]["state"] == "UNAVAILABLE"
            assert index["echo_batch"] == {"name": "echo_batch", "version": "1", "state": "READY"}
            assert (found.is_model_ready("broken"), found.is_server_ready()) == (False, True)
            np.testing.assert_array_equal(found.infer("collects", [tensor("X", ones)]).as_numpy("Y"), ones)
            engine = next(child for child in psutil.Process(server.process.pid).children())
            with pytest.raises(InferenceServerException, match="failed to load 'never_comes'"):
                found.infer("never_comes", [tensor("X", ones)])
            for _ in range(2):
                with pytest.raises(InferenceServerException, match=r"failed \(SystemExit\)"):
                    found.infer("leaves", [tensor("X", ones)])
            assert engine.is_running()
            engine.kill()
            wait_for(lambda: not psutil.pid_exists(engine.pid), "the process is gone")
            again = found.infer("echo_batch", [tensor("X", arrays[0])])
            np.testing.assert_array_equal(again.as_numpy("Y"), arrays[0])
    finally:
        server.stop()


@pytest.mark.soak
def test_a_server_of_its_own_knows_from_its_start_which_modules_cannot_be_loaded(tmp_path: Path) -> None:
    config, modules = ECHO.format(datatype="FP32", batch=0, delay=0), tmp_path / "models"
    whole = ECHO_SOURCE.format(sleep=0)
    for name, source in {"a": whole, "z": whole, **{name: source for name, (source, _) in BROKEN.items()}}.items():
        add_model(modules, name, config, source)
    server = Server(tmp_path, "--NbgenApp.model=/no/model", f"--NbgenApp.model_repository={modules}")

    def index() -> dict[str, Any]:
        found = {entry["name"]: entry for entry in server.http.post("v2/repository/index").json()}
        return {} if any(found[name]["state"] == "LOADING" for name in ("a", "z", *BROKEN)) else found

    try:
        found = wait_for(index, "all modules were tried")
        for name, (_, reason) in BROKEN.items():
            assert (found[name]["state"], found[name]["reason"]) == ("UNAVAILABLE", reason)
        with client(server) as asked:
            assert [asked.is_model_ready(name) for name in ("a", "exits", "z")] == [True, False, True]
            (modules / "exits/1/model.py").write_text(whole)
            array = np.ones(3, np.float32)
            np.testing.assert_array_equal(asked.infer("exits", [tensor("X", array)]).as_numpy("Y"), array)
            assert asked.is_model_ready("exits"), "it was mended"
    finally:
        server.stop()


def test_unload_and_load_by_name(jupyter: Server) -> None:
    array = np.ones(3, np.float32)
    with client(jupyter) as found:
        found.infer("echo", [tensor("X", array)])
        found.unload_model("echo")
        assert not found.is_model_ready("echo")
        index = {entry["name"]: entry for entry in found.get_model_repository_index()}
        assert index["echo"] == {"name": "echo", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
        with pytest.raises(InferenceServerException, match="has no available versions"):
            found.infer("echo", [tensor("X", array)])
        found.load_model("echo")
        assert found.is_model_ready("echo")
        np.testing.assert_array_equal(found.infer("echo", [tensor("X", array)]).as_numpy("Y"), array)


def test_who_waits_for_a_module_that_is_loaded_anew_is_answered(server: Server) -> None:
    """As Triton, by what they have asked; what comes later is the new one's."""
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(post, server, "slow", json.dumps(slow(5))) for _ in range(3)]
        wait_for(lambda: pending(server, "slow") == 3, "all are there")
        server.http.post("v2/repository/models/slow/load", json={}).raise_for_status()
        assert post(server, "slow", json.dumps(slow(1))).status_code == 200
        assert [answer.result().status_code for answer in asked] == [200] * 3


def test_a_caller_who_leaves_takes_their_request_along(server: Server) -> None:
    assert post(server, "slow", json.dumps(slow(1))).status_code == 200
    before = counts(server, "slow")["inference_stats"]
    with contextlib.ExitStack() as callers, gathering(server, "slow", 4):
        for _ in range(4):
            callers.enter_context(server.asking("v2/models/slow/infer", slow(20)))
    wait_for(lambda: counts(server, "slow")["inference_stats"]["fail"]["count"] == before["fail"]["count"] + 4, "fails")
    assert post(server, "slow", json.dumps(slow(1))).status_code == 200


def test_a_request_that_cannot_start_in_time_is_given_up(server: Server) -> None:
    def within(microseconds: int, tenths: int = 1) -> Any:
        return post(server, "slow", json.dumps(slow(tenths, timeout=microseconds)))

    assert within(0).status_code == 200
    with ThreadPoolExecutor(2) as pool:
        with gathering(server, "slow", 2):
            first = pool.submit(within, 0, 5)
            wait_for(lambda: pending(server, "slow") == 1, "the first waits")
            late = pool.submit(within, 1000)
        assert first.result().status_code == 200
        assert (late.result().status_code, "Request timeout expired" in late.result().text) == (503, True)
    assert within(60_000_000).status_code == 200
    assert within(2**64 - 1).status_code == 200
