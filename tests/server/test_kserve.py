"""KServe v2 over HTTP through Triton's own clients: descriptions, settings, errors on the wire."""

from __future__ import annotations

import gzip
import json
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.conftest import TOKEN, Server
from tests.server.triton import HEADERS, client, counts, flag, tensor, text

MODEL = "long-llama"


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


@pytest.mark.parametrize("asked", ["live", "ready"])
def test_kserves_client_reads_in_the_body_how_the_server_is(server: Server, asked: str) -> None:
    answer = server.http.get(f"v2/health/{asked}")
    assert (answer.status_code, answer.json()) == (200, {asked: True})


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
    before = counts(server, MODEL)["inference_stats"]
    answer = infer(server, JSON_BODY + blob, Inference_Header_Content_Length=str(len(JSON_BODY)))
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]
    assert counts(server, MODEL)["inference_stats"] == before, "what is refused counts nowhere"


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


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ([flag("stream")], {}),
        ([], {"stream": True}),
        ([], {"streaming": "TRUE"}),
        ([], {"sampling_param_stream": True}),
        ([], {"sampling_parameters": '{"stream": true}'}),
        ([tensor("sampling_parameters", np.array(['{"stream": "True"}'], object))], {}),
    ],
)
def test_a_stream_has_no_place_in_infer(server: Server, inputs: list[Any], parameters: dict[str, Any]) -> None:
    with client(server) as found, pytest.raises(InferenceServerException, match="generate_stream"):
        found.infer(MODEL, [text("a"), *inputs], parameters=parameters)


def test_curl_sends_what_it_likes(server: Server, tmp_path: Path) -> None:
    """Form types, chunked bodies, and bodies that wait for 100-continue."""
    url = f"{server.root}nbgen/v2/models/{MODEL}/generate?token={TOKEN}"
    large = tmp_path / "body.json"
    large.write_text(json.dumps({"text_input": "hi", "max_tokens": 1, "x": "y" * 2_000_000}))
    for more in (["-d", '{"text_input": "hi", "max_tokens": 1}'], ["-d", f"@{large}"]):
        for chunked in ([], ["-H", "Transfer-Encoding: chunked"]):
            said = subprocess.run(["curl", "-sS", "-X", "POST", url, *more, *chunked], capture_output=True, check=True)
            assert json.loads(said.stdout)["model_name"] == MODEL
