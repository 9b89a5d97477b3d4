"""Takes large fields out of a protobuf message before it is parsed, and appends them to one that is made, uncopied.

The generated classes would copy every byte several times, holding the GIL all the while. Follows protobuf's encoding:
a message is a sequence of fields, in any order. Knows no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nbgen.errors import InvalidRequest

MAX_FIELDS = 2**16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Split(NamedTuple):
    """A message without one of its repeated bytes fields, and the contents of that field."""

    rest: bytes
    contents: list[memoryview]


def split(message: bytes, field: int) -> Split:
    """Take a field out of a message. Raises InvalidRequest for bytes that are no message."""
    view, position = memoryview(message), 0
    kept: list[memoryview] = []
    contents: list[memoryview] = []
    while position < len(view):
        start = position
        key, position = _varint(view, position)
        begin, position = _value(view, position, key & 7)
        if position > len(view):
            raise _cut()
        if len(kept) + len(contents) >= MAX_FIELDS:
            raise InvalidRequest(f"the message has more than {MAX_FIELDS} fields")
        if key == field << 3 | _BYTES:
            contents.append(view[begin:position])
        else:
            kept.append(view[start:position])
    return Split(b"".join(kept), contents)


def head(field: int, size: int) -> bytes:
    """The key and length in front of `size` bytes of a field."""
    return _encoded(field << 3 | _BYTES) + _encoded(size)


def appended(message: bytes, field: int, contents: Iterable[list[memoryview]]) -> list[bytes | memoryview]:
    """The message with further values of a repeated bytes field appended, as pieces; each value is given in pieces."""
    pieces: list[bytes | memoryview] = [message]
    for parts in contents:
        pieces += [head(field, sum(map(len, parts))), *parts]
    return pieces


def _value(view: memoryview, position: int, kind: int) -> tuple[int, int]:
    """Where a field's value begins and ends."""
    if kind == _VARINT:
        return position, _varint(view, position)[1]
    if kind == _BYTES:
        size, begin = _varint(view, position)
        return begin, begin + size
    if kind in _FIXED:
        return position, position + _FIXED[kind]
    raise InvalidRequest("the message is not in protobuf's format")


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """Decode a varint (7 bits per byte, the lowest first); returns its value and its end."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(view):
            raise _cut()
        byte = view[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise InvalidRequest("the message is not in protobuf's format")


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _cut() -> InvalidRequest:
    return InvalidRequest("the message is cut short")
