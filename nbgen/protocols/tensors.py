"""Converts tensors between KServe v2's two formats: JSON lists and little-endian bytes.

Large tensors are read and written in slices, so that no single call holds the GIL for long: a worker thread may do
this beside an event loop. Follows the KServe v2 binary tensor data extension. Knows no request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import orjson

from nbgen.bytes_elements import MAX_ELEMENTS, pack_bytes, unpack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import Tensor
from nbgen.protocols.json_body import MAX_DEPTH
from nbgen.protocols.json_structure import NOT_UTF8, depth
from nbgen.tensor_spec import ELEMENT_BYTES

NUMPY = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
#: The only datatypes that JSON cannot carry.
BINARY_ONLY = ("FP16", "BF16")
#: Size of a slice in bytes of JSON, and in elements: a few milliseconds of work.
JSON_SLICE = 2**18
ELEMENT_SLICE = 2**16
TOO_DEEP = f"JSON nesting depth exceeds {MAX_DEPTH}"

_KINDS: dict[str, tuple[set[type], str]] = {
    "S": ({str}, "non-string as string"),
    "b": ({bool}, "non-boolean as boolean"),
    "i": ({int}, "non-signed-integer as signed-integer"),
    "u": ({int}, "non-unsigned-integer as unsigned-integer"),
    "f": ({int, float}, "non-number as number"),
}


class Binary:
    """The bytes of a tensor in pieces, to avoid joining them. A piece holds whole elements, except for BYTES."""

    def __init__(self, pieces: Iterable[memoryview] = ()) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def joined(self) -> memoryview:
        """All bytes as one view."""
        return self.pieces[0] if len(self.pieces) == 1 else memoryview(b"".join(self.pieces))


# --- JSON to bytes


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix refusals inside this context with the input's name."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"input '{name[:200]}': {error.message}") from None


def from_values(values: list[Any], datatype: str) -> memoryview:
    """The bytes of a flat list of JSON scalars. Raises InvalidRequest for a wrong type or a value out of range."""
    kind = _kind(datatype)
    types, words = _KINDS[kind]
    if not set(map(type, values)) <= types:
        raise InvalidRequest(f"attempt to access JSON {words}")
    if kind == "S":
        return pack_bytes(value.encode("utf-8", "surrogatepass") for value in values)
    if kind == "u" and values and min(values) < 0:
        raise InvalidRequest(f"attempt to access JSON {words}")
    return _numbers(values, datatype, kind)


def _numbers(values: list[Any], datatype: str, kind: str) -> memoryview:
    dtype = NUMPY[datatype]
    if kind in "iu" and values:
        info = np.iinfo(dtype.name)
        if min(values) < info.min or max(values) > info.max:
            raise InvalidRequest(f"a value is out of range of {datatype}: {info.min} to {info.max}")
    try:
        with np.errstate(over="raise"):
            array = np.array(values, dtype)
    except (OverflowError, FloatingPointError):
        raise InvalidRequest(f"a value is out of range of {datatype}") from None
    return memoryview(array.tobytes())


def from_json(raw: bytes, datatype: str) -> tuple[memoryview, int]:
    """The bytes of a JSON array of any nesting, and how many scalars it holds. `raw` is valid JSON."""
    if not raw.startswith(b"["):
        raise InvalidRequest("Unable to parse 'data': attempt to access JSON non-array as array")
    parts, count = [], 0
    try:
        for values in _slices(raw):
            parts.append(from_values(values, datatype))
            count += len(values)
    except msgspec.ValidationError:  # a number that is too large for any type
        raise InvalidRequest(f"a value is out of range of {datatype}") from None
    except RecursionError:
        raise InvalidRequest(TOO_DEEP) from None
    except (UnicodeDecodeError, msgspec.DecodeError):  # the latter since msgspec 0.23
        raise InvalidRequest(NOT_UTF8) from None
    return Binary(parts).joined() if parts else memoryview(b""), count


def _slices(raw: bytes) -> Iterator[list[Any]]:
    """The scalars of an array in order, in slices if it is long and has no strings or objects."""
    if len(raw) <= JSON_SLICE or raw.find(b'"') >= 0 or raw.find(b"{") >= 0:
        yield flat(msgspec.json.decode(raw))
        return
    scalars = _flattened(raw) if raw.find(b"[", 1) >= 0 else raw[1:-1]
    start = 0
    while start < len(scalars):
        end = scalars.find(b",", start + JSON_SLICE)
        end = len(scalars) if end < 0 else end
        yield msgspec.json.decode(b"[%b]" % scalars[start:end])
        start = end + 1


def _flattened(raw: bytes) -> bytes:
    """The scalars of nested lists, separated by commas only."""
    if depth(memoryview(raw)) > MAX_DEPTH + 1:
        raise InvalidRequest(TOO_DEEP)
    scalars = raw.translate(None, b"[] \t\r\n")
    while b",," in scalars:  # empty lists
        scalars = scalars.replace(b",,", b",")
    return scalars.strip(b",")


def flat(value: Any) -> list[Any]:
    """The scalars of nested lists in order. Anything that is not a plain list counts as a scalar."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if list not in set(map(type, level)):
            return level
        level = [item for entry in level for item in (entry if type(entry) is list else (entry,))]
    raise InvalidRequest(TOO_DEEP)


# --- bytes to JSON


def values(data: memoryview, datatype: str, *, errors: str = "replace") -> list[Any]:
    """The elements as Python scalars; those of BYTES as text, `errors` as in `bytes.decode`.

    FP16 and BF16 have no such form.
    """
    if datatype == "BYTES":
        return [item.decode("utf-8", errors) for item in unpack_bytes(data)]
    found: list[Any] = np.frombuffer(data, NUMPY[datatype]).tolist()
    return found


def to_json(binary: Binary, datatype: str) -> Iterator[bytes]:
    """The elements as a flat JSON list, yielded in slices. Non-finite values become NaN, Infinity or -Infinity."""
    yield b"["
    comma = b""
    for piece in _readable(binary, datatype):
        found = _encode(piece, datatype)
        if len(found) > 2:
            yield comma + found[1:-1]
            comma = b","
    yield b"]"


def _readable(binary: Binary, datatype: str) -> Iterator[memoryview]:
    if datatype == "BYTES":
        yield binary.joined()
        return
    step = ELEMENT_SLICE * ELEMENT_BYTES[datatype]
    for piece in binary.pieces:
        for start in range(0, len(piece), step):
            yield piece[start : start + step]


def _encode(piece: memoryview, datatype: str) -> bytes:
    """A piece's elements as a JSON list; FP32 has the fewest digits that round-trip."""
    if datatype == "BYTES":
        return msgspec.json.encode(values(piece, datatype))
    array = np.frombuffer(piece, NUMPY[datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return json.dumps(array.tolist(), separators=(",", ":")).encode()
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def check_strings(datatype: str, count: int, name: str) -> None:
    """Raise InvalidRequest for too many elements of BYTES."""
    if datatype == "BYTES" and count > MAX_ELEMENTS:
        raise InvalidRequest(f"input '{name}' has {count} string elements; at most {MAX_ELEMENTS}")


def check_size(tensor: Tensor) -> None:
    """Raise InvalidRequest unless the tensor has as many bytes as its shape and datatype say."""
    count = math.prod(tensor.shape)
    if tensor.datatype == "BYTES":
        check_strings(tensor.datatype, count, tensor.name)
        if (found := len(unpack_bytes(tensor.data))) != count:
            raise InvalidRequest(f"expected {count} string elements for input '{tensor.name}', got {found}")
    elif len(tensor.data) != (size := count * ELEMENT_BYTES[tensor.datatype]):
        raise InvalidRequest(
            f"input byte size mismatch for input '{tensor.name}'. Expected {size}, got {len(tensor.data)}"
        )


def _kind(datatype: str) -> str:
    if datatype == "BYTES":
        return "S"
    if datatype in BINARY_ONLY:
        raise InvalidRequest(f"{datatype} has no form in JSON; send it as binary data")
    return NUMPY[datatype].kind
