"""Triton's own clients as tests use them, and a repository of plain modules for them to ask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.http as triton
from tritonclient.utils import np_to_triton_dtype

from tests.server.conftest import TOKEN, Server, wait_for

HEADERS = {"Authorization": f"token {TOKEN}"}
TOKEN_METADATA = {"authorization": f"Bearer {TOKEN}"}

SIMPLE = """
max_batch_size = 8
input = [
    { name = "INPUT0", datatype = "INT32", dims = [16] },
    { name = "INPUT1", datatype = "INT32", dims = [16] },
]
output = [
    { name = "OUTPUT0", datatype = "INT32", dims = [16] },
    { name = "OUTPUT1", datatype = "INT32", dims = [16] },
]
"""
SIMPLE_SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, INPUT0, INPUT1):
        return INPUT0 + INPUT1, INPUT0 - INPUT1
"""
IMAGE = """{
    "name": "densenet_onnx", "platform": "", "max_batch_size": 0,
    "input": [{"name": "data_0", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW", "dims": [3, 224, 224],
               "reshape": {"shape": [1, 3, 224, 224]}}],
    "output": [{"name": "fc6_1", "data_type": "TYPE_FP32", "dims": [10], "reshape": {"shape": [1, 10, 1, 1]},
                "label_filename": "labels.txt"}]
}"""
IMAGE_SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 7, stride=4)
        self.head = torch.nn.Linear(4, 10)

    def forward(self, data_0):
        return self.head(self.conv(data_0).relu().mean((2, 3)))[:, :, None, None]
"""
ECHO = """
max_batch_size = {batch}
input = [{{ name = "X", datatype = "{datatype}", dims = [-1] }}]
output = [{{ name = "Y", datatype = "{datatype}", dims = [-1] }}]
dynamic_batching = {{ max_queue_delay_microseconds = {delay} }}
"""
ECHO_SOURCE = """
import time
import torch

class Model(torch.nn.Module):
    def forward(self, X):
        if X.numel() and X.is_floating_point() and bool((X == 13).any()):
            raise ValueError("/a/private/path")
        time.sleep({sleep})
        return X
"""
STRINGS = """
max_batch_size = 8
input = [
    { name = "INPUT0", data_type = "TYPE_STRING", dims = [-1] },
    { name = "SHIFT", datatype = "INT32", dims = [1], optional = true },
]
output = [
    { name = "OUTPUT0", data_type = "TYPE_STRING", dims = [-1] },
    { name = "LENGTHS", datatype = "INT32", dims = [-1] },
]
dynamic_batching = { max_queue_delay_microseconds = 50_000 }
"""
STRINGS_SOURCE = """
import numpy as np
import torch

class Model(torch.nn.Module):
    def forward(self, INPUT0, SHIFT=None):
        assert INPUT0.dtype == object and all(type(item) is bytes for item in INPUT0.flat)
        if (INPUT0 == b"wrong").any():
            return [[13]], torch.zeros(1, 1)
        upper = [[item.upper() if item.isascii() else item.decode() for item in row] for row in INPUT0]
        lengths = torch.tensor([[len(item) for item in row] for row in INPUT0], dtype=torch.int64)
        return upper, lengths if SHIFT is None else lengths + SHIFT
"""
ONE_STRING = """
input = [{ name = "X", datatype = "BYTES", dims = [1] }]
output = [{ name = "Y", datatype = "BYTES", dims = [1] }]
"""
ONE_STRING_SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, X):
        return X[::-1]
"""


def add_model(repository: Path, name: str, config: str, source: str, *, suffix: str = "toml") -> Path:
    """A model's folder; the folder of its only version."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / f"config.{suffix}").write_text(config)
    (version / "model.py").write_text(source)
    return version


def image_module() -> Any:
    """The classifier that the repository holds, the same every time."""
    import torch

    namespace: dict[str, Any] = {}
    exec(IMAGE_SOURCE, namespace)
    torch.manual_seed(0)
    return namespace["Model"]().eval()


def save_repository(repository: Path) -> Path:
    """`simple`, an image classifier, and modules that give back what they get."""
    from safetensors.torch import save_file

    add_model(repository, "simple", SIMPLE, SIMPLE_SOURCE)
    version = add_model(repository, "densenet_onnx", IMAGE, IMAGE_SOURCE, suffix="json")
    save_file(image_module().state_dict(), version / "model.safetensors")
    (version.parent / "labels.txt").write_text("".join(f"LABEL {index}\n" for index in range(10)))
    for name, datatype, batch in [("echo", "FP32", 0), ("echo_batch", "FP32", 32), ("echo_half", "FP16", 0)]:
        delay = 50_000 if name == "echo_batch" else 0
        config = ECHO.format(datatype=datatype, batch=batch, delay=delay)
        add_model(repository, name, config, ECHO_SOURCE.format(sleep=0))
    add_model(
        repository,
        "slow",
        ECHO.format(datatype="INT64", batch=0, delay=0),
        ECHO_SOURCE.format(sleep="X.max().item() / 10"),
    )
    add_model(repository, "strings", STRINGS, STRINGS_SOURCE)
    add_model(repository, "one_string", ONE_STRING, ONE_STRING_SOURCE)
    return repository


def client(server: Server, **options: Any) -> triton.InferenceServerClient:
    """Triton's client of the server, with the token on every call, as its own plug-in adds it."""
    found = triton.InferenceServerClient(server.root.removeprefix("http://").rstrip("/") + "/nbgen", **options)
    found.register_plugin(WithToken())
    return found


def grpc_address(server: Server) -> str:
    """Where the server's gRPC port is, as its log says."""
    found = wait_for(lambda: re.search(r"gRPC listens on port (\d+)", server.log.read_text()), "the port")
    return f"127.0.0.1:{found[1]}"


class WithToken(triton.InferenceServerClientPlugin):
    """Adds the token's header."""

    def __call__(self, request: Any) -> None:
        request.headers.update(HEADERS)


def pending(server: Server, model: str) -> int:
    """How many of its requests wait or run."""
    name = f'nv_inference_pending_request_count{{model="{model}",version="1"}} '
    return next(int(line.removeprefix(name)) for line in server.http.get("metrics").text.splitlines() if name in line)


@contextmanager
def gathering(server: Server, model: str, requests: int) -> Iterator[None]:
    """At its end, so many requests of the model wait; until then nothing is computed."""
    children = psutil.Process(server.process.pid).children()
    for child in children:
        child.suspend()
    try:
        yield
        wait_for(lambda: pending(server, model) == requests, "all are there")
    finally:
        for child in children:
            child.resume()


def counts(server: Server, model: str) -> dict[str, Any]:
    """The model's statistics."""
    return server.http.get(f"v2/models/{model}/stats").json()["model_stats"][0]


def tensor(name: str, array: np.ndarray, *, binary: bool = True, kind: Any = triton) -> Any:
    """An input of the client library `kind`."""
    found = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    options = {} if kind.__name__.startswith("tritonclient.grpc") else {"binary_data": binary}
    found.set_data_from_numpy(array, **options)
    return found


def text(value: str, **options: Any) -> Any:
    """The language model's text input."""
    return tensor("text_input", np.array([value.encode()], dtype=object), **options)


def flag(name: str, **options: Any) -> Any:
    return tensor(name, np.array([True]), **options)
