"""Packs and unpacks BYTES tensors in KServe v2's binary format: each element follows its length, 4 bytes little-endian.

Follows the KServe v2 binary tensor data extension. Knows neither wires nor numpy; protocols and engine use it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from nbgen.errors import InvalidRequest

LENGTH_BYTES = 4
#: Most elements of one tensor: each becomes a Python object when it is read.
MAX_ELEMENTS = 2**21


def pack_bytes(items: Iterable[bytes]) -> memoryview:
    """The elements, each after its length."""
    return memoryview(b"".join(struct.pack("<I", len(item)) + item for item in items))


def unpack_bytes(data: memoryview) -> list[bytes]:
    """The elements. Raises InvalidRequest if lengths and bytes disagree, or there are too many elements."""
    items: list[bytes] = []
    whole, size, position = bytes(data), len(data), 0
    while position < size:
        if (start := position + LENGTH_BYTES) > size:
            raise InvalidRequest("incomplete string length indicator: a BYTES element begins with 4 bytes of length")
        position = start + int.from_bytes(whole[position:start], "little")
        if position > size:
            raise InvalidRequest(f"the string elements are cut: one of {position - start} bytes has {size - start}")
        if len(items) == MAX_ELEMENTS:
            raise InvalidRequest(f"a BYTES tensor has at most {MAX_ELEMENTS} string elements")
        items.append(whole[start:position])
    return items
