"""BYTES tensors as a module gets and returns them: numpy arrays of objects, as in Triton's Python back end."""

from typing import Any

import numpy as np

from nbgen.bytes_elements import pack_bytes, unpack_bytes
from nbgen.errors import InternalError
from nbgen.messages import Tensor


def from_tensor(tensor: Tensor) -> np.ndarray:
    """The elements as `bytes`."""
    array = np.empty(tensor.shape, np.object_)
    array.reshape(-1)[:] = unpack_bytes(tensor.data)
    return array


def from_module(value: Any, name: str) -> np.ndarray:
    """The array of a module's output `name`, which is an array or nested lists of text or bytes."""
    array = np.asarray(value, np.object_)
    wrong = next((item for item in array.flat if not isinstance(item, str | bytes)), None)
    if wrong is not None:
        raise InternalError(f"the module gave a {type(wrong).__name__} in {name}, whose elements are text or bytes")
    return array


def to_wire(array: np.ndarray) -> memoryview:
    """The elements, each after its length; text in UTF-8."""
    return pack_bytes(item.encode() if isinstance(item, str) else item for item in array.flat)
