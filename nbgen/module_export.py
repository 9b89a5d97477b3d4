"""Exports a notebook's torch module into a model's folder: its graph and weights, and their description.

The graph is torch.export's, so another process does not load the notebook's code. Notebook code imports the engine only
here, for the names of datatypes, and in `live`. Knows no server.
"""

import inspect
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from nbgen.engine.tensor_module import DTYPES
from nbgen.errors import InvalidRequest, ModelError

#: Example sizes of the batch and of variable dimensions while the graph is recorded.
BATCH, VARIABLE_SIZE = 2, 5
LABELS = "labels.txt"

Tensors = Mapping[str, tuple[str, Sequence[int]]]


class Positional(torch.nn.Module):
    """Takes inputs in their declared order, whatever `forward` calls them."""

    def __init__(self, module: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self._names = list(names)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.module(**dict(zip(self._names, tensors, strict=True)))


class FileForTorch(io.FileIO):
    """Never fails a write, since torch would then abort the whole process. `failure` is the error that occurred."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Return the full size even after an error."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self.failure is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.failure = error
        return size


def check(module: Any, inputs: Tensors) -> None:
    """Raises InvalidRequest if it is no module, ModelError for inputs that torch's graphs do not take."""
    if not isinstance(module, torch.nn.Module):
        words = f"a module is a torch.nn.Module, got {type(module).__name__}: put a function into the forward of one"
        raise InvalidRequest(words, field="module")
    for name, (datatype, _) in inputs.items():
        if datatype not in DTYPES:
            hint = "; BYTES need a module of the model repository (model.py)" if datatype == "BYTES" else ""
            raise ModelError(f"{name} is of datatype {datatype!r}; torch's graphs take {', '.join(DTYPES)}{hint}")


def export(folder: Path, module: torch.nn.Module, inputs: Tensors, max_batch_size: int) -> None:
    """Write `model.pt2` of the module, for the CPU and in evaluation mode; the module itself is not changed.

    Raises ModelError if its graph cannot be recorded, OSError if the file cannot be written; and as `check`.
    """
    check(module, inputs)
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    examples = tuple(_example(*declared, max_batch_size).to(device) for declared in inputs.values())
    dynamic = (_dynamic(inputs, max_batch_size),)
    try:
        with _modes_kept(module):
            program = torch.export.export(_ordered(module, inputs), examples, dynamic_shapes=dynamic)
    except Exception as error:  # whatever in the module cannot be recorded
        raise ModelError(f"torch.export cannot record this module's graph: {type(error).__name__}: {error}") from error
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileForTorch(folder / "model.pt2", "wb") as file:
        torch.export.save(program if device.type == "cpu" else move_to_device_pass(program, "cpu"), file)
    if file.failure is not None:
        raise file.failure


def describe(
    inputs: Tensors, outputs: Tensors, labels: Sequence[str], max_batch_size: int, max_queue_delay_us: int
) -> str:
    """The model's `config.json`."""
    named = [{"name": n, "datatype": t, "dims": list(d)} for n, (t, d) in outputs.items()]
    if labels:
        named[0]["label_filename"] = LABELS
    config = {
        "max_batch_size": max_batch_size,
        "input": [{"name": n, "datatype": t, "dims": list(d)} for n, (t, d) in inputs.items()],
        "output": named,
        "dynamic_batching": {"max_queue_delay_microseconds": max_queue_delay_us},
    }
    return json.dumps(config, indent=2)


def _example(datatype: str, dims: Sequence[int], max_batch_size: int) -> torch.Tensor:
    shape = [size if size > 0 else VARIABLE_SIZE for size in dims]
    return torch.zeros([BATCH, *shape] if max_batch_size else shape, dtype=DTYPES[datatype])


@contextmanager
def _modes_kept(module: torch.nn.Module) -> Iterator[None]:
    """Restore the modes of the module and its parts afterwards: training may go on."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        module.train(modes[0][1])  # since a part's own `train` may do more than set the flag
        for part, training in modes:
            part.training = training


def _ordered(module: torch.nn.Module, inputs: Tensors) -> torch.nn.Module:
    names = inspect.signature(module.forward).parameters
    taken = all(name in names for name in inputs)
    return (Positional(module, list(inputs)) if taken else InOrder(module)).eval()


class InOrder(torch.nn.Module):
    """Passes inputs on by position."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.module(*tensors)


def _dynamic(inputs: Tensors, max_batch_size: int) -> tuple[dict[int, Any], ...]:
    """The dimensions that may have any size: the batch, and those declared as variable."""
    batched = 1 if max_batch_size else 0
    return tuple(
        ({0: torch.export.Dim.AUTO} if batched else {})
        | {index + batched: torch.export.Dim.AUTO for index, size in enumerate(dims) if size < 0}
        for _, dims in inputs.values()
    )
