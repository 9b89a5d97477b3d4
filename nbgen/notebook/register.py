"""Serve a torch module of this notebook as a model: `nbgen.register`, and the object that it returns.

The module's graph and weights are written into the server's repository, a folder that this user owns; the server loads
them from there. Knows nothing of torch: `nbgen.module_export`, which writes the folder, imports it.
"""

from __future__ import annotations

import operator
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nbgen.errors import InvalidRequest, NbgenError, Unavailable
from nbgen.notebook import session
from nbgen.notebook.client import Client
from nbgen.notebook.short_traceback import short_traceback

Tensors = Mapping[str, tuple[str, Sequence[int]]]
ALLOWED = "letters, digits, '_', '.' and '-'"


class RegisteredModel:
    """A module that the server runs. `url` and `headers` are what Triton's HTTP client takes."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        parts = urlsplit(client.url)
        self.url = f"{parts.netloc}{parts.path.rstrip('/')}"
        self.headers = dict(client.headers)  # a copy, as tritonclient adds its own headers

    def __repr__(self) -> str:
        return f"<model {self.name!r}: tritonclient.http.InferenceServerClient({self.url!r}).infer({self.name!r}, …)>"


@short_traceback
def register(
    name: str,
    module: Any,
    *,
    inputs: Tensors,
    outputs: Tensors,
    labels: Sequence[str] = (),
    max_batch_size: int = 0,
    max_queue_delay_us: int = 0,
) -> RegisteredModel:
    """Serve a torch module under a name, beside the language model, to `tritonclient` and curl.

    `inputs` and `outputs` map names to (datatype, dims), as `{"image": ("FP32", [3, 224, 224])}`; -1 is any size.
    With `max_batch_size` every tensor has a leading batch dimension, and requests that wait up to
    `max_queue_delay_us` microseconds are computed together. `labels` name the elements of the first output.
    """
    client = session.default_client()
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name, re.ASCII) or name.strip(".") != name:
        raise InvalidRequest(f"a model's name is made of {ALLOWED}, got {name!r}", field="name")
    if not isinstance(client, Client):
        raise InvalidRequest(f"modules are registered with an nbgen server, and {client!r} is none: nbgen.serve()")
    inputs, outputs = _declared(inputs, "inputs"), _declared(outputs, "outputs")
    repository = _repository(client)
    from nbgen.module_export import LABELS, check, describe, export  # imports torch, as the module already has

    check(module, inputs)
    client.start_modules()  # beside the export: both import torch's compiler, which takes seconds
    with _written(repository), _replaced(repository / name, client) as folder:
        export(folder / "1", module, inputs, max_batch_size)
        (folder / LABELS).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
        config = describe(inputs, outputs, labels, max_batch_size, max_queue_delay_us)
        (folder / "config.json").write_text(config, encoding="utf-8")
        client.load_module(name)
    return RegisteredModel(name, client)


def _declared(tensors: Any, field: str) -> Tensors:
    """The declared tensors, with dims as Python's integers. Raises InvalidRequest for any other shape."""
    try:
        return {name: (datatype, [*map(operator.index, dims)]) for name, (datatype, dims) in tensors.items()}
    except (AttributeError, TypeError, ValueError):
        words = f'{field} map names to (datatype, dims), as {{"x": ("FP32", [3, -1])}}, got {tensors!r:.80}'
        raise InvalidRequest(words, field=field) from None


@contextmanager
def _written(repository: Path) -> Iterator[None]:
    """Around writes into the repository: raises a fault of the disk as Unavailable."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"the module cannot be written into {repository}: {error.strerror or error}") from None


@contextmanager
def _replaced(folder: Path, client: Client) -> Iterator[Path]:
    """A free path for the model's folder. If loading it fails, the folder that was there before is served again."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as aside:
        before = Path(aside) / folder.name
        if folder.exists():
            folder.rename(before)
        try:
            yield folder
        except BaseException:  # also Ctrl-C: a model that cannot be loaded must not stay in the repository
            shutil.rmtree(folder, ignore_errors=True)
            if before.exists():
                before.rename(folder)
            with suppress(NbgenError):  # fails if there was none before, which tells the server that the model is gone
                client.load_module(folder.name)
            raise


def _repository(client: Client) -> Path:
    folder = client.hello().get("model_repository")
    if not folder or not Path(folder).is_dir():
        raise Unavailable(
            "a module is handed to the server in a folder, and this kernel does not see the server's: register it "
            "from a kernel on the server's own machine"
        )
    return Path(folder)
