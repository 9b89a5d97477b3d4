"""Triton's classification extension: renders an output as its largest elements, `value:index:label`. Knows no wire."""

from __future__ import annotations

import numpy as np

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.protocols.inference import OutputTensor
from nbgen.protocols.tensors import NUMPY, Binary
from nbgen.tensor_spec import TensorSpec

MAX_ELEMENTS = 1_000_000


def classified(output: OutputTensor, spec: TensorSpec, classes: int, *, batched: bool) -> OutputTensor:
    """The `classes` largest elements of each batch entry, or of the whole tensor, as BYTES. Raises InvalidRequest."""
    if output.datatype in ("BYTES", "BOOL", "FP16", "BF16"):
        raise InvalidRequest(f"class result not available for output '{output.name}' due to unsupported datatype")
    rows = output.shape[0] if batched and output.shape else 1
    elements = np.frombuffer(output.data.joined(), NUMPY[output.datatype])
    if len(elements) > MAX_ELEMENTS:
        raise InvalidRequest(
            f"class result not available for output '{output.name}': {len(elements)} elements, at most {MAX_ELEMENTS}"
        )
    entries = elements.reshape(rows, len(elements) // rows if rows else 0)
    count = min(classes, entries.shape[1])
    words = [word for entry in entries for word in _largest(entry, spec.labels, count)]
    shape = [rows, count] if batched else [count]
    return OutputTensor(output.name, "BYTES", shape, Binary([pack_bytes(word.encode() for word in words)]))


def _largest(entry: np.ndarray, labels: tuple[str, ...], count: int) -> list[str]:
    """Largest first; equal elements in their order. NaN comes last."""
    match entry.dtype.kind:
        case "f":
            order = np.argsort(-entry, kind="stable")  # which puts NaN last
        case _:
            order = np.argsort(~entry, kind="stable")  # the complement falls as the integer grows, and never overflows
    return [_word(entry[index], int(index), labels) for index in order[:count]]


def _word(value: np.generic, index: int, labels: tuple[str, ...]) -> str:
    number = f"{value:f}" if value.dtype.kind == "f" else str(value)
    return f"{number}:{index}:{labels[index]}" if index < len(labels) else f"{number}:{index}"
