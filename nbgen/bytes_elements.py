"""The elements of a BYTES tensor on KServe v2's binary wire: each behind its length in 4 bytes, little-endian.

Follows the KServe v2 binary tensor data extension. Knows neither wires nor numpy; protocols and engine read it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from nbgen.errors import InvalidRequest

LENGTH_BYTES = 4
#: Elements of one tensor: each is an object of Python's wherever it is looked at.
MAX_ELEMENTS = 2**21


def pack_bytes(items: Iterable[bytes]) -> memoryview:
    """BYTES elements, each behind its length."""
    return memoryview(b"".join(struct.pack("<I", len(item)) + item for item in items))


def unpack_bytes(data: memoryview) -> list[bytes]:
    """BYTES elements. Raises InvalidRequest where lengths and bytes disagree, or there are too many."""
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
