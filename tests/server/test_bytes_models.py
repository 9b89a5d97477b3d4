"""Modules of BYTES tensors: numpy arrays of objects inside, JSON strings or length-prefixed bytes on the wire."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from nbgen.errors import ModelError
from nbgen.module_export import export
from tests.server.conftest import Server
from tests.server.triton import client, gathering, tensor

WORDS = [[b"a", b"", "\u00e9\U0001f98a".encode()], [b"one", b"two", b"x" * 70_000]]


def texts(rows: list[list[bytes]], *, binary: bool = True) -> Any:
    return tensor("INPUT0", np.array(rows, np.object_), binary=binary)


@pytest.mark.parametrize("binary", [True, False])
def test_text_goes_in_and_comes_out(server: Server, binary: bool) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "LENGTHS")]
    with client(server) as found:
        result = found.infer("strings", [texts(WORDS, binary=binary)], outputs=outputs)
        config, metadata = found.get_model_config("strings"), found.get_model_metadata("strings")
    given = result.as_numpy("OUTPUT0").tolist()
    assert [[item if isinstance(item, bytes) else item.encode() for item in row] for row in given] == [
        [item.upper() for item in row] for row in WORDS
    ]
    assert result.as_numpy("LENGTHS").tolist() == [[len(item) for item in row] for row in WORDS]
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "BYTES", "shape": [-1, -1]}


def test_any_bytes_survive_where_they_are_bytes(server: Server) -> None:
    rows = [[bytes(range(256)), b"\0\0"]]
    with client(server) as found:
        result = found.infer("strings", [texts([[b"plain"]]), tensor("SHIFT", np.array([[10]], np.int32))])
        assert result.as_numpy("LENGTHS").tolist() == [[15]]
        whole = found.infer("one_string", [tensor("X", np.array([rows[0][0]], np.object_))])
    assert whole.as_numpy("Y").tolist() == [rows[0][0]]


def test_texts_are_computed_together(server: Server) -> None:
    def ask(number: int) -> bytes:
        with client(server) as found:
            return found.infer("strings", [texts([[f"word {number}".encode()]])]).as_numpy("OUTPUT0")[0, 0]

    def executions() -> int:
        return server.http.get("v2/models/strings/stats").json()["model_stats"][0]["execution_count"]

    assert ask(0) == b"WORD 0"
    before = executions()
    with ThreadPoolExecutor(16) as pool:
        with gathering(server, "strings", 16):
            answers = pool.map(ask, range(16))
        assert list(answers) == [f"WORD {number}".encode() for number in range(16)]
    assert executions() - before < 16


def test_a_raw_body_is_the_one_element(server: Server) -> None:
    answer = server.http.post(
        "v2/models/one_string/infer", content=b"any \xff bytes", headers={"Inference-Header-Content-Length": "0"}
    )
    assert answer.status_code == 200, answer.text
    assert answer.content.endswith(b"\x0b\0\0\0any \xff bytes")


def test_generate_and_grpcs_lengths(server: Server) -> None:
    answer = server.http.post("v2/models/one_string/generate", json={"X": "hello"})
    assert answer.json()["Y"] == "hello"


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"\1\0\0", "incomplete string length indicator"),
        (b"\2\0\0\0a", "string elements are cut"),
        (b"\xff\xff\xff\xffa", "string elements are cut"),
        (b"\1\0\0\0a\1\0\0\0b", "expected 1 string elements"),
        (b"", "expected 1 string elements"),
        (bytes(16 * 2**20), "at most 2097152 string elements"),
    ],
)
def test_lying_lengths_are_refused(server: Server, blob: bytes, words: str) -> None:
    head = b'{"inputs":[{"name":"X","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}' % len(blob)
    answer = server.http.post(
        "v2/models/one_string/infer",
        content=head + blob,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_what_is_no_text_is_the_modules_fault(server: Server) -> None:
    with client(server) as found, pytest.raises(InferenceServerException, match="gave a int in OUTPUT0") as failure:
        found.infer("strings", [texts([[b"wrong"]])])
    assert failure.value.status() == "500"


def test_a_graph_has_no_text(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="BYTES need a module of the model repository"):
        export(tmp_path, torch.nn.Identity(), {"X": ("BYTES", [1])}, 0)
