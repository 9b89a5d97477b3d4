"""Strict JSON: decodes a client's body into Python values, or raises InvalidRequest and nothing else.

Stricter than `json.loads`: UTF-8 only (with or without the byte order mark that Windows writes), finite numbers, 64-bit
integers, unique keys, bounded depth and size, and no lone surrogate, which no later encoder could write. Knows no
protocol's fields.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar

import msgspec

from nbgen.errors import InvalidRequest, place_of
from nbgen.protocols.json_structure import SLICE, check_structure

MAX_DEPTH = 100
MAX_KEYS = 20_000
MAX_DIGITS = 20
#: Most values of a body: as many as there are token ids of three digits in 64 MiB.
MAX_BODY_VALUES = 2**24
#: Longest text of a prompt.
MAX_TEXT_BYTES = 4 * 2**20
MAX_TOKEN_ID = 2**31 - 1
LOWEST, HIGHEST = -(2**63), 2**64 - 1
#: msgspec's words for a field that the body lacks.
MISSING = re.compile(r"Object missing required field `(\w+)`")

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


T = TypeVar("T")


class MalformedBody(InvalidRequest):
    """The bytes are not the JSON that this server reads."""


def parse_json(body: bytes) -> Any:
    """Decode a body. Raises MalformedBody, or InvalidRequest for more values than are read at once."""
    check_structure(memoryview(body), values=MAX_BODY_VALUES)
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = (_wary_decoder if _holds(_LONG_NUMBER, body) else _decoder).decode(text)
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error.msg} (character {error.pos})") from None
    except RecursionError:
        raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH}") from None
    _check_shape(value)
    check_surrogates(body, value)
    return value


def parse_object(body: bytes) -> dict[str, Any]:
    """As `parse_json`, for a route that takes a JSON object; an empty body is an empty object."""
    value = parse_json(body) if body.strip() else {}
    if not isinstance(value, dict):
        raise MalformedBody("the body must be a JSON object")
    return value


def convert(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Convert the fields to a struct of this kind. Raises InvalidRequest naming the first field that does not fit."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        what, place = place_of(str(error))
        if not place and (missing := MISSING.fullmatch(what)):
            raise InvalidRequest(f"`{missing[1]}` is missing: it must be given", field=missing[1]) from None
        raise InvalidRequest(f"{place}: {what}" if place else what, field=place or None) from None


def refuse_unsupported(fields: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise InvalidRequest for a field that is known but unsupported, unless its value asks for nothing.

    The `table` has these harmless values for each field. The first is always None, which equals leaving it out.
    """
    for name, unset in table.items():
        if fields.get(name) not in unset:
            values = " or ".join(json.dumps(value) for value in unset[1:])
            remedy = f"leave it out, or give {values}" if values else "leave it out"
            raise InvalidRequest(f"`{name}` is not supported by this server: {remedy}", field=name)


def refuse_inside(fields: Mapping[str, Any], name: str, table: Mapping[str, tuple[Any, ...]]) -> None:
    """As `refuse_unsupported`, for the fields of the object under this name."""
    if isinstance(inside := fields.get(name), dict):
        given = {f"{name}.{key}": value for key, value in inside.items()}
        refuse_unsupported(given, {f"{name}.{key}": unset for key, unset in table.items()})


def is_integer(value: Any, low: float = -math.inf, high: float = math.inf) -> TypeGuard[int]:
    """Whether it is an integer from `low` to `high`; JSON's true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def are_integers(value: Any) -> bool:
    """Whether it is a list of integers; JSON's true and false are none."""
    return isinstance(value, list) and set(map(type, value)) <= {int}


def are_ids(value: Any) -> bool:
    """Whether it is a list of possible token ids, whatever the vocabulary."""
    return are_integers(value) and (not value or (min(value) >= 0 and max(value) <= MAX_TOKEN_ID))


def check_range(name: str, value: int | None, low: int, high: int) -> None:
    """Raise InvalidRequest for a number that is given and out of range."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{name} must be {low} to {high}, got {value}", field=name)


def check_text_size(name: str, size: int) -> None:
    """Raise InvalidRequest for more bytes of text than a prompt may have."""
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest(f"{name} is longer than {MAX_TEXT_BYTES} bytes", field=name)


def _holds(pattern: re.Pattern[bytes], body: bytes | memoryview) -> bool:
    """Whether a body contains a pattern whose matches have at most MAX_DIGITS bytes."""
    return any(pattern.search(body, start, start + SLICE + MAX_DIGITS) for start in range(0, len(body), SLICE))


def _constant(name: str) -> float:
    raise MalformedBody(f"{name} is not a finite number")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise MalformedBody(f"{digits[:MAX_DIGITS]} is not a finite number")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS or not LOWEST <= (value := int(digits)) <= HIGHEST:
        raise MalformedBody(f"{digits[:MAX_DIGITS]}… does not fit in 64 bits")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise MalformedBody(f"an object has {len(pairs)} keys; at most {MAX_KEYS}")
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise MalformedBody(f"the key {twice[:80]!r} is given twice")
    return fields


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_float, parse_constant=_constant)
#: Also checks integers. Twice as slow for a list of a million token ids, so it is used only if there is a long number.
_wary_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_float, parse_int=_integer, parse_constant=_constant
)


def _check_shape(value: Any) -> None:
    """Check the depth, level by level to avoid recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
    if level:
        raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH}")


def check_surrogates(body: bytes | memoryview, value: Any) -> None:
    """Raise MalformedBody if a text in a body's `value` has a lone surrogate."""
    if not _holds(_SURROGATE_ESCAPE, body):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MalformedBody("the body holds half of a surrogate pair (\\ud800 to \\udfff alone)") from None
