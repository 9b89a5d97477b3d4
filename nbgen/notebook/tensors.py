"""Arrays as the tensors of KServe v2's JSON, and back.

Follows the Open Inference Protocol's `$request_input` and `$response_output` (datatypes and row-major data). Knows
nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nbgen.errors import InvalidRequest

_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "FP32",
    "float64": "FP64",
}
_KINDS = {datatype: np.dtype(name) for name, datatype in _DATATYPES.items()} | {"BYTES": np.dtype(object)}


def to_tensors(arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each array by its name; texts become BYTES. Raises InvalidRequest for a type that JSON cannot carry."""
    if not isinstance(arrays, Mapping):
        kind = type(arrays).__name__
        raise InvalidRequest(f"inputs are arrays by their names, {{'x': …}}, got {kind}", field="inputs")
    return [_tensor(name, np.asarray(value)) for name, value in arrays.items()]


def from_tensors(tensors: list[dict[str, Any]]) -> dict[str, Any]:
    """The arrays of an answer by their names; BYTES are str."""
    return {
        tensor["name"]: np.asarray(tensor["data"], _KINDS[tensor["datatype"]]).reshape(tensor["shape"])
        for tensor in tensors
    }


def _tensor(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    text = array.dtype.kind in "US" or (array.dtype == object and all(isinstance(item, str) for item in array.flat))
    datatype = "BYTES" if text else _DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise InvalidRequest(
            f"{name} is an array of {array.dtype.name}, which JSON tensors cannot carry: use {', '.join(_DATATYPES)} "
            "or texts",
            field=name,
        )
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}
