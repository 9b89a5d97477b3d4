"""Arrays as the tensors of KServe v2, and back: numbers as bytes behind the JSON, texts in it.

Follows the Open Inference Protocol and its binary tensor data extension (row-major, little-endian), which carries every
number, NaN among them. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbgen.bytes_elements import unpack_bytes
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.arrays import as_array
from nbgen.notebook.short_traceback import short_traceback

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
_KINDS = {datatype: np.dtype(name) for name, datatype in _DATATYPES.items()} | {"BYTES": np.dtype(object)}


@short_traceback
def infer(model: str, inputs: Mapping[str, Any], *, outputs: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    """KServe v2's infer: arrays in, arrays out, by their names. `outputs` picks some, `parameters` go along."""
    tensors, numbers = to_tensors(inputs)
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    body = {"inputs": tensors, "parameters": {**parameters, "binary_data_output": True}}
    answer, data = session.default_client().infer(model, body | ({"outputs": wanted} if wanted else {}), numbers)
    return from_tensors(answer["outputs"], data)


def to_tensors(arrays: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bytes]:
    """Each array by its name, and the bytes of those that are numbers; texts become BYTES.

    Tensors of torch may need gradients; bfloat16, which numpy has not, becomes float32. Raises InvalidRequest for a
    type that KServe has not.
    """
    if not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise InvalidRequest(f"inputs are arrays by their names, {{'x': …}}, got {kind}", field="inputs")
    tensors, parts = [], []
    for name, value in arrays.items():
        tensor, data = _tensor(name, as_array(value))
        tensors.append(tensor)
        parts.append(data)
    return tensors, b"".join(parts)


def from_tensors(tensors: list[dict[str, Any]], data: bytes = b"") -> dict[str, Any]:
    """The arrays of an answer by their names, from the bytes that follow it or the JSON; BYTES are str."""
    arrays, rest = {}, memoryview(data)
    for tensor in tensors:
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            flat = np.asarray(tensor["data"], _KINDS[tensor["datatype"]])
        else:
            flat, rest = _from_bytes(rest[:size], tensor["datatype"]), rest[size:]
        arrays[tensor["name"]] = flat.reshape(tensor["shape"])
    return arrays


def _tensor(name: str, array: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
    fields = {"name": name, "shape": list(array.shape)}
    if array.dtype.kind in "US" or (array.dtype == object and all(isinstance(item, str) for item in array.flat)):
        return {**fields, "datatype": "BYTES", "data": array.ravel().tolist()}, b""
    datatype = _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise InvalidRequest(
            f"{name} is an array of {array.dtype.name}, which no tensor has: use {', '.join(_DATATYPES)} or texts",
            field=name,
        )
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {**fields, "datatype": datatype, "parameters": {"binary_data_size": len(data)}}, data


def _from_bytes(data: memoryview, datatype: str) -> np.ndarray[Any, Any]:
    """Elements of a tensor behind each other, in memory of their own."""
    if datatype == "BYTES":
        return np.array([item.decode(errors="replace") for item in unpack_bytes(data)], dtype=object)
    if datatype == "BF16":  # the upper halves of float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, _KINDS[datatype].newbyteorder("<")).astype(_KINDS[datatype])
