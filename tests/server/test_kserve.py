"""KServe v2 over HTTP through Triton's own clients: the language model as tensors, statistics, errors on the wire."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from transformers import AutoModelForCausalLM
from tritonclient.utils import InferenceServerException

from tests.server.conftest import BUSY, TOKEN, Server, wait_for
from tests.server.triton import HEADERS, WithToken, client, flag, tensor, text

PROMPT = list(b"Once upon a time there was a fox")
MODEL = "long-llama"


@pytest.fixture(scope="module")
def reference(long_model: Path) -> torch.nn.Module:
    """The same checkpoint, run by transformers in float32."""
    return AutoModelForCausalLM.from_pretrained(long_model, dtype=torch.float32).eval()


def scores(reference: torch.nn.Module, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        output = reference(torch.tensor([tokens]), output_hidden_states=True)
    return output.logits[0].numpy(), output.hidden_states[-1][0].numpy()


def wanted(*names: str, **options: Any) -> list[triton.InferRequestedOutput]:
    return [triton.InferRequestedOutput(name, **options) for name in names]


def counts(server: Server, model: str = MODEL) -> dict[str, Any]:
    return server.http.get(f"v2/models/{model}/stats").json()["model_stats"][0]


# --- metadata


def test_a_stock_client_finds_a_server_and_its_models(server: Server) -> None:
    with client(server) as found:
        assert found.is_server_live()
        assert found.is_server_ready()
        assert found.is_model_ready(MODEL)
        assert found.is_model_ready(MODEL, "1")
        assert found.get_server_metadata()["name"] == "triton"
        metadata, config = found.get_model_metadata(MODEL), found.get_model_config(MODEL)
        assert {item["name"] for item in config["input"]} <= {item["name"] for item in metadata["inputs"]}
        assert {item["name"] for item in config["output"]} == {item["name"] for item in metadata["outputs"]}
        assert all(item["optional"] for item in config["input"])
        assert config["model_transaction_policy"] == {"decoupled": True}
        logits = next(item for item in metadata["outputs"] if item["name"] == "logits")
        assert logits == {"name": "logits", "datatype": "FP32", "shape": [-1, 260]}
        index = {entry["name"]: entry for entry in found.get_model_repository_index()}
        assert index[MODEL] == {"name": MODEL, "version": "1", "state": "READY"}
        with pytest.raises(InferenceServerException, match="Request for unknown model"):
            found.get_model_metadata("nope")


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "v2/models/nope", 404, "Request for unknown model: 'nope' is not found"),
        ("GET", f"v2/models/{MODEL}/versions/9", 404, "version 9 is not found"),
        ("GET", f"v2/models/{MODEL}/versions/{10**30}", 400, "version string"),
        ("GET", f"v2/models/{MODEL}/versions/x", 404, "no route"),
        ("GET", f"v2/models/{MODEL}/", 404, "no route"),
        ("GET", "v2/models/nope/ready", 404, "Request for unknown model"),
        ("GET", "v2/models/nope/stats", 400, "Request for unknown model"),
        ("POST", "v2", 405, "not a method"),
        ("HEAD", "v2/health/live", 405, ""),
        ("GET", f"v2/models/{MODEL}/infer", 405, "not a method"),
        ("GET", "v2/repository/index", 405, "not a method"),
        ("POST", "v2/repository/models/nope/load", 400, "failed to load"),
        ("POST", "v2/repository/models/nope/unload", 200, ""),
        ("POST", "v2/repository/mine/models/nope/load", 501, "not supported"),
        ("GET", "v2/systemsharedmemory/region/x/status", 404, "Unable to find system shared memory region"),
        ("GET", "v2/cudasharedmemory/region/x/status", 404, "Unable to find cuda shared memory region"),
        ("POST", "v2/systemsharedmemory/region/x/register", 501, "Client shared memory is disabled"),
        ("POST", "v2/cudasharedmemory/region/x/unregister", 501, "Client shared memory is disabled"),
        ("POST", "v2/cudasharedmemory/unregister", 200, ""),
        ("GET", "v2/models/nope/trace/setting", 404, "Request for unknown model"),
    ],
)
def test_routes_answer_errors_in_their_shape(server: Server, method: str, path: str, status: int, words: str) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    if status != 200 and method != "HEAD":
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]


def test_the_index_reads_its_one_option(server: Server) -> None:
    assert server.http.post("v2/repository/index", content=b'{"ready":true}').status_code == 200
    for value in (b"1", b'"x"', b"[" * 250_000 + b"]" * 250_000):
        answer = server.http.post("v2/repository/index", content=b'{"ready":' + value + b"}")
        assert answer.status_code == 400
        assert "Invalid value for 'ready': expected a boolean" in answer.json()["error"]


def test_a_load_brings_nothing_with_it(server: Server) -> None:
    body = {"parameters": {"config": "{}", "file:1/model.onnx": "AAAA"}}
    answer = server.http.post(f"v2/repository/models/{MODEL}/load", json=body)
    assert answer.status_code == 400
    assert "failed to load" in answer.json()["error"]


def test_logging_and_trace_settings_are_kept_and_told(server: Server) -> None:
    with client(server) as found:
        assert found.update_log_settings({"log_verbose_level": 2})["log_verbose_level"] == 2
        assert found.update_log_settings({"log_verbose_level": 0})["log_verbose_level"] == 0
        with pytest.raises(InferenceServerException, match="can not be updated through network protocol"):
            found.update_log_settings({"log_file": "x"})
        assert found.get_trace_settings()["trace_rate"] == "1000"
        found.update_trace_settings(MODEL, {"trace_rate": "5"})
        assert found.get_trace_settings(MODEL)["trace_rate"] == "5"
        assert found.update_trace_settings(MODEL, {"trace_rate": None})["trace_rate"] == "1000"
        for wrong in ({"trace_rate": "x"}, {"trace_count": "-2"}, {"trace_level": ["OFF", "TENSORS"]}):
            with pytest.raises(InferenceServerException, match="Unable to parse"):
                found.update_trace_settings(settings=wrong)


# --- the language model as tensors


@pytest.mark.parametrize("binary", [True, False])
def test_logits_and_hidden_states_are_torchs(server: Server, reference: torch.nn.Module, binary: bool) -> None:
    logits, hidden = scores(reference, PROMPT)
    with client(server) as found:
        outputs = wanted("logits", "context_logits", "hidden_states", "num_input_tokens", binary_data=binary)
        result = found.infer(MODEL, [tensor("input_ids", np.array(PROMPT), binary=binary)], outputs=outputs)
    np.testing.assert_allclose(result.as_numpy("logits"), logits, atol=2e-3)
    np.testing.assert_allclose(result.as_numpy("context_logits"), logits, atol=2e-3)
    np.testing.assert_allclose(result.as_numpy("hidden_states"), hidden, atol=2e-3)
    assert result.as_numpy("num_input_tokens") == [len(PROMPT)]


def test_generated_tokens_come_with_what_chose_them(server: Server, reference: torch.nn.Module) -> None:
    names = ("output_ids", "generation_logits", "output_log_probs", "cum_log_probs", "finish_reason", "text_output")
    inputs = [
        tensor("input_ids", np.array(PROMPT, np.int32)),
        tensor("temperature", np.array([0.0], np.float32)),
        tensor("max_tokens", np.array([6], np.int32)),
    ]
    with client(server) as found:
        result = found.infer(MODEL, inputs, outputs=wanted(*names), request_id="seven")
    tokens = result.as_numpy("output_ids")[0].tolist()
    logits, _ = scores(reference, PROMPT + tokens)
    rows = logits[len(PROMPT) - 1 : -1]
    assert result.get_response()["id"] == "seven"
    assert tokens == rows.argmax(-1).tolist()
    np.testing.assert_allclose(result.as_numpy("generation_logits")[0], rows, atol=2e-3)
    expected = torch.log_softmax(torch.tensor(rows), -1).numpy()[range(len(tokens)), tokens]
    np.testing.assert_allclose(result.as_numpy("output_log_probs")[0], expected, atol=2e-3)
    assert result.as_numpy("cum_log_probs")[0] == pytest.approx(expected.sum(), abs=1e-2)
    assert result.as_numpy("finish_reason").tolist() in ([b"length"], [b"stop"])


def test_default_outputs_and_the_echo(server: Server) -> None:
    with client(server) as found:
        greedy = tensor("temperature", np.array([0.0], np.float32))
        whole = found.infer(MODEL, [text("abc"), greedy])
        assert [output["name"] for output in whole.get_response()["outputs"]] == ["text_output"]
        assert whole.as_numpy("text_output")[0].startswith(b"abc")
        bare = found.infer(MODEL, [text("abc"), greedy, flag("exclude_input_in_output")])
        assert b"abc" + bare.as_numpy("text_output")[0] == whole.as_numpy("text_output")[0]
        of_ids = found.infer(MODEL, [tensor("input_ids", np.array(list(b"abc"))), greedy, flag("return_log_probs")])
        assert {output["name"] for output in of_ids.get_response()["outputs"]} == {
            "text_output",
            "output_ids",
            "output_log_probs",
            "cum_log_probs",
        }


def test_classification_shows_the_likeliest_tokens(server: Server, reference: torch.nn.Module) -> None:
    logits, _ = scores(reference, PROMPT[:1])
    with client(server) as found:
        result = found.infer(
            MODEL, [tensor("input_ids", np.array(PROMPT[:1]))], outputs=wanted("logits", class_count=5)
        )
    rows = [word.decode().split(":") for word in result.as_numpy("logits")]
    assert [int(index) for _, index in rows] == torch.tensor(logits[0]).topk(5).indices.tolist()
    assert [float(value) for value, _ in rows] == pytest.approx(sorted(logits[0])[:-6:-1], abs=2e-3)


def test_several_samples_are_several_elements(server: Server) -> None:
    with client(server) as found:
        result = found.infer(MODEL, [text("abc")], parameters={"n": 3, "max_tokens": 2, "seed": 1})
    assert result.as_numpy("text_output").shape == (3,)


def test_async_infer_and_the_asyncio_client_give_the_same(server: Server) -> None:
    inputs = [tensor("input_ids", np.array(PROMPT))]
    with client(server, concurrency=4) as found:
        waiting = [found.async_infer(MODEL, inputs, outputs=wanted("logits")) for _ in range(8)]
        arrays = [request.get_result().as_numpy("logits") for request in waiting]

    async def ask() -> np.ndarray:
        url = server.root.removeprefix("http://") + "nbgen"
        async with triton_aio.InferenceServerClient(url) as found:
            found.register_plugin(WithToken())
            assert await found.is_server_ready()
            assert (await found.get_model_metadata(MODEL))["name"] == MODEL
            result = await found.infer(MODEL, inputs, outputs=wanted("logits"), response_compression_algorithm="gzip")
            return result.as_numpy("logits")

    arrays.append(asyncio.run(ask()))
    for array in arrays[1:]:
        np.testing.assert_allclose(array, arrays[0], atol=1e-3)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(server: Server, algorithm: str) -> None:
    with client(server) as found:
        for binary in (True, False):
            result = found.infer(
                MODEL,
                [tensor("input_ids", np.array(PROMPT), binary=binary)],
                outputs=wanted("logits", binary_data=binary),
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            assert result.as_numpy("logits").shape == (len(PROMPT), 260)


def test_thirty_two_clients_at_once_are_counted_exactly(server: Server, reference: torch.nn.Module) -> None:
    before = counts(server)

    def ask(seed: int) -> None:
        tokens = np.random.default_rng(seed).integers(4, 260, 8 + seed)
        with client(server, network_timeout=120) as found:
            for _ in range(2):
                result = found.infer(MODEL, [tensor("input_ids", tokens)], outputs=wanted("logits"))
                np.testing.assert_allclose(result.as_numpy("logits"), expected[seed], atol=2e-3)

    rows = {seed: np.random.default_rng(seed).integers(4, 260, 8 + seed) for seed in range(32)}
    expected = {seed: scores(reference, tokens.tolist())[0] for seed, tokens in rows.items()}
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(32)))
    after = counts(server)
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][name]["count"] - before["inference_stats"][name]["count"] == 64, name
    assert after["inference_count"] - before["inference_count"] == 64
    assert after["inference_stats"]["fail"] == before["inference_stats"]["fail"]


def test_whoever_leaves_is_counted_as_a_failure_and_ends_their_request(server: Server) -> None:
    before = counts(server)["inference_stats"]
    body = {"text_input": "a", "max_tokens": 15_000, "parameters": {"ignore_eos": True, "temperature": 0}}
    assert BUSY["max_new_tokens"] == body["max_tokens"]
    for path in ("generate", "generate_stream"):
        with pytest.raises(Exception, match="timed out"):
            server.http.post(f"v2/models/{MODEL}/{path}", json=body, timeout=0.5)
    server.idle()
    wait_for(lambda: counts(server)["inference_stats"]["fail"]["count"] == before["fail"]["count"] + 2, 3, "two fails")
    assert counts(server)["inference_stats"]["success"] == before["success"]


WATCH = """
import sys, time, urllib.request
slowest, request = 0.0, urllib.request.Request(sys.argv[1], headers={"Authorization": "token " + sys.argv[2]})
print("ready", flush=True)
stop = time.monotonic() + 6
while time.monotonic() < stop:
    started = time.monotonic()
    urllib.request.urlopen(request).read()
    slowest = max(slowest, time.monotonic() - started)
print(slowest)
"""


def test_a_large_answer_holds_nobody_up(server: Server) -> None:
    """50 MB of JSON, there and back, while another process asks for health: no answer waits for it."""
    array = np.random.default_rng(0).standard_normal(2_500_000).astype(np.float32)
    command = [sys.executable, "-c", WATCH, f"{server.root}nbgen/v2/health/live", TOKEN]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch,
        client(server, network_timeout=120) as c,
    ):
        assert watch.stdout is not None
        watch.stdout.readline()
        result = c.infer("echo", [tensor("X", array, binary=False)], outputs=wanted("Y", binary_data=False))
        slowest = float(watch.stdout.readline())
    np.testing.assert_array_equal(result.as_numpy("Y"), array)
    assert slowest < 1.0, "the event loop was held up"


# --- malformed requests


def infer(server: Server, body: bytes, **headers: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.post(f"v2/models/{MODEL}/infer", content=body, headers=names)


JSON_BODY = json.dumps(
    {"inputs": [{"name": "input_ids", "shape": [2], "datatype": "INT64", "parameters": {"binary_data_size": 16}}]}
).encode()
TWO_IDS = np.array([5, 6]).tobytes()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("x", "Unable to parse Inference-Header-Content-Length"),
        ("99999999999", "out of range"),
        ("-1", "inference header size should be in range"),
        ("100000", "inference header size should be in range"),
        ("0", "Raw request must only have 1 input"),
        ("5", "failed to parse"),
    ],
)
def test_lying_header_lengths_are_refused(server: Server, header: str, words: str) -> None:
    answer = infer(server, JSON_BODY + TWO_IDS, Inference_Header_Content_Length=header)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    good = infer(server, JSON_BODY + TWO_IDS, Inference_Header_Content_Length=f"+{len(JSON_BODY)} junk")
    assert good.status_code == 200, good.text


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (TWO_IDS[:9], "expecting 7 additional bytes"),
        (TWO_IDS + b"x", "unexpected additional input data"),
        (np.array([5, 10**6]).tobytes(), "out-of-vocabulary"),
        (np.array([5, -1]).tobytes(), "out-of-vocabulary"),
    ],
)
def test_lying_blobs_are_refused(server: Server, blob: bytes, words: str) -> None:
    before = counts(server)["inference_stats"]
    answer = infer(server, JSON_BODY + blob, Inference_Header_Content_Length=str(len(JSON_BODY)))
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]
    assert counts(server)["inference_stats"] == before, "what is refused counts nowhere"


def test_content_encodings(server: Server) -> None:
    whole = gzip.compress(b'{"inputs":[{"name":"input_ids","shape":[1],"datatype":"INT64","data":[5]}]}')
    assert infer(server, whole, Content_Encoding="deflate").status_code == 200, "either header works with either data"
    unknown = infer(server, whole, Content_Encoding="br")
    assert (unknown.status_code, unknown.headers["accept-encoding"]) == (501, "gzip, deflate")
    assert infer(server, b"", Content_Encoding="gzip").status_code == 400
    assert infer(server, whole[:20], Content_Encoding="gzip").status_code == 400
    bomb = zlib.compress(b" " * (64 * 2**20 + 1))
    assert "exceeds the maximum" in infer(server, bomb, Content_Encoding="deflate").json()["error"]
    generate = server.http.post(f"v2/models/{MODEL}/generate", content=whole, headers={"Content-Encoding": "gzip"})
    assert generate.status_code == 400
    metadata = server.http.get("v2", headers={"Accept-Encoding": "gzip, deflate, br"})
    assert "content-encoding" not in metadata.headers


def test_too_much_json_is_refused_and_the_connection_lives(server: Server) -> None:
    body = b'{"text_input": "' + b"x" * (64 * 2**20) + b'"}'
    with server.anonymous(**HEADERS) as http:
        for path in ("generate", "generate_stream", "infer"):
            answer = http.post(f"v2/models/{MODEL}/{path}", content=body)
            assert answer.status_code == 400, path
            assert "exceeds the maximum allowed input size of" in answer.json()["error"]
        assert http.get("v2/health/live").status_code == 200


def test_a_stream_has_no_place_in_infer(server: Server) -> None:
    with client(server) as found, pytest.raises(InferenceServerException, match="generate_stream"):
        found.infer(MODEL, [text("a"), flag("stream")])


def test_curl_sends_what_it_likes(server: Server, tmp_path: Path) -> None:
    """Form types, chunked bodies, and bodies that wait for 100-continue."""
    url = f"{server.root}nbgen/v2/models/{MODEL}/generate?token={TOKEN}"
    large = tmp_path / "body.json"
    large.write_text(json.dumps({"text_input": "hi", "max_tokens": 1, "x": "y" * 2_000_000}))
    for more in (["-d", '{"text_input": "hi", "max_tokens": 1}'], ["-d", f"@{large}"]):
        for chunked in ([], ["-H", "Transfer-Encoding: chunked"]):
            said = subprocess.run(["curl", "-sS", "-X", "POST", url, *more, *chunked], capture_output=True, check=True)
            assert json.loads(said.stdout)["model_name"] == MODEL
