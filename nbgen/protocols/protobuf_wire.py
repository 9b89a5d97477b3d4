"""Large fields of protobuf messages, without a copy: taken out before a message is parsed, put behind one that is made.

The generated classes copy every byte several times, holding the interpreter all the while. Follows the encoding of
protobuf: a message is its fields one after the other, in any order. Knows no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nbgen.errors import InvalidRequest

MAX_FIELDS = 2**16

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Split(NamedTuple):
    """A message without the contents of one repeated field of bytes, and these."""

    rest: bytes
    contents: list[memoryview]


def split(message: bytes, field: int) -> Split:
    """Take a field out of a message. Raises InvalidRequest for what is no message."""
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
    """What stands in front of `size` bytes of a field."""
    return _encoded(field << 3 | _BYTES) + _encoded(size)


def appended(message: bytes, field: int, contents: Iterable[list[memoryview]]) -> list[bytes | memoryview]:
    """The pieces of a message with more of a repeated field of bytes, each given in pieces."""
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
    """A number of 7 bits a byte, the lowest first, and where it ends."""
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
