"""Reads a call in an answer that was cut off: the function's name, and the arguments as far as they came.

Knows neither templates nor tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from nbgen.engine.written_calls import BETWEEN, begun_calls, past

_DECODER = json.JSONDecoder()
_NAME = re.compile(r'"(?:tool_)?name"\s*:\s*("(?:[^"\\]|\\.)*")')
#: A function's name as the key of its arguments.
_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=\{)')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*')


class BegunCall(NamedTuple):
    """A function's name, its arguments as JSON, and whether these are complete."""

    name: str
    arguments: str
    whole: bool


def read_begun(name: str | None, body: str) -> list[BegunCall]:
    """The calls in an unclosed part of an answer; the last may be cut off, and is left out if it has no name yet.

    `name` is the function's if it stands before the arguments.
    """
    body = body.lstrip()
    if name is not None:
        return [_begun(name, body)]
    if re.match(r"\[?\s*\{", body):
        return list(_of_objects(body.removeprefix("[")))
    return [
        BegunCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)[: None if whole else -1], whole)
        for name, arguments, whole in begun_calls(body)
    ]


def _of_objects(text: str) -> Iterator[BegunCall]:
    """Consecutive objects with a name and arguments; the name must come first, as arguments may contain others."""
    place = 0
    while (place := past(BETWEEN, text, place)) < len(text):
        try:
            _, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = len(text)
        name, arguments = _NAME.search(text, place, end), _ARGUMENTS.search(text, place, end)
        if (key := _KEY.match(text, place, end)) is not None and key.group(1) not in ('"arguments"', '"parameters"'):
            name = arguments = key
        if name is None or (arguments is not None and arguments.start() < name.start()):
            return
        try:
            function = json.loads(name.group(1), strict=False)
        except ValueError:  # an escape that JSON does not know
            return
        yield _begun(function, text[arguments.end() : end] if arguments else "")
        place = end


def _begun(name: str, arguments: str) -> BegunCall:
    """A call whose arguments begin the text `arguments`, as an object or as a string that contains one."""
    try:
        value, _ = _DECODER.raw_decode(arguments + ('"' if arguments.startswith('"') else ""))
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return BegunCall(name, arguments, whole=False)
    if isinstance(value, str):
        return _begun(name, value) if not value.startswith('"') else BegunCall(name, value, whole=False)
    return BegunCall(name, written, whole=isinstance(value, dict))
