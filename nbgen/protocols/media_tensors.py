"""Tensors in the JSON of a medium: nested lists of numbers, or `{"data": base64, "dtype": …, "shape": […]}`.

Does not know which tensors a model takes.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import numpy as np

from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols.json_body import is_integer
from nbgen.tensor_spec import ELEMENT_BYTES

#: torch's and numpy's names of datatypes.
DATATYPES = {
    "float64": "FP64",
    "float32": "FP32",
    "float16": "FP16",
    "bfloat16": "BF16",
    "int64": "INT64",
    "int32": "INT32",
    "int16": "INT16",
    "int8": "INT8",
    "uint8": "UINT8",
    "bool": "BOOL",
}
#: Datatypes that nested lists become, by numpy's kind of their numbers.
LISTED = {"f": ("FP32", "<f4"), "i": ("INT64", "<i8"), "u": ("INT64", "<i8"), "b": ("BOOL", "?")}
FLOATS = {"FP64": "<f8", "FP32": "<f4", "FP16": "<f2"}
MAX_DIMS = 8
MAX_NAME = 80


def parse_tensor(name: str, value: Any, field: str) -> Tensor:
    """The tensor `name` of a medium. Raises InvalidRequest."""
    if len(name) > MAX_NAME or not name.isidentifier():
        raise _refusal(field, name, "is no name of a tensor")
    tensor = _packed(name, value, field) if isinstance(value, dict) else _listed(name, value, field)
    if tensor.datatype in FLOATS and not np.isfinite(np.frombuffer(tensor.data, FLOATS[tensor.datatype])).all():
        raise _refusal(field, name, "holds a number that is not finite")
    return tensor


def _listed(name: str, value: Any, field: str) -> Tensor:
    try:
        numbers = np.array(value)
    except (ValueError, OverflowError):
        raise _refusal(field, name, "has rows of different lengths") from None
    if numbers.dtype.kind not in LISTED or not numbers.size or numbers.ndim > MAX_DIMS:
        raise _refusal(field, name, f"must be numbers, in lists of at most {MAX_DIMS} levels")
    datatype, dtype = LISTED[numbers.dtype.kind]
    with np.errstate(over="ignore"):
        packed = np.ascontiguousarray(numbers, dtype=dtype)
    return Tensor(name=name, datatype=datatype, shape=numbers.shape, data=memoryview(packed.tobytes()))


def _packed(name: str, value: dict[str, Any], field: str) -> Tensor:
    if set(value) != {"data", "dtype", "shape"} or not isinstance(value["data"], str):
        raise _refusal(field, name, "must be lists of numbers, or an object with data (base64), dtype and shape")
    datatype, shape = DATATYPES.get(str(value["dtype"]).removeprefix("torch.")), value["shape"]
    if datatype is None:
        raise _refusal(field, name, f"has the dtype {value['dtype']!r:.40}; known are {', '.join(DATATYPES)}")
    if not _is_shape(shape):
        raise _refusal(field, name, f"needs a shape of 1 to {MAX_DIMS} lengths, none below 1")
    try:
        data = base64.b64decode(value["data"].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise _refusal(field, name, "has data that is not base64") from None
    expected = math.prod(shape) * ELEMENT_BYTES[datatype]
    if len(data) != expected:
        raise _refusal(field, name, f"has {len(data)} bytes; {value['dtype']} of the shape {shape} has {expected}")
    return Tensor(name=name, datatype=datatype, shape=tuple(shape), data=memoryview(data))


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_DIMS:
        return False
    return all(is_integer(n, 1, 2**31 - 1) for n in shape)


def _refusal(field: str, name: str, words: str) -> InvalidRequest:
    return InvalidRequest(f"`{field}`: {name[:MAX_NAME]} {words}", field=field)
