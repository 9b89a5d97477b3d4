"""The value of JSON that is still being written: the text so far, with open strings and brackets closed.

Knows the grammar of RFC 8259 as far as brackets, strings and commas go.
"""

from __future__ import annotations

import json
from typing import Any

_CLOSERS = {"{": "}", "[": "]"}


def parse_partial(text: str) -> Any:
    """The value as far as it is known; None before it begins, and for a text that is no JSON."""
    end, brackets, open_brackets, in_string = _scan(text)
    whole = text.rstrip("\\") + '"' * in_string + _closed(open_brackets)
    for attempt in (whole, text[:end] + _closed(brackets)):
        try:
            return json.loads(attempt)
        except (ValueError, RecursionError):  # RecursionError: nested too deep
            continue
    return None


def _closed(brackets: list[str]) -> str:
    return "".join(reversed(brackets))


def _scan(text: str) -> tuple[int, list[str], list[str], bool]:
    """The last whole item's end and the closers needed there; the closers at the end; if a string is open there."""
    end, needed, brackets, in_string, escaped = 0, list[str](), list[str](), False, False
    for place, letter in enumerate(text):
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            in_string = True
        elif letter in _CLOSERS:
            brackets.append(_CLOSERS[letter])
            end, needed = place + 1, brackets.copy()
        elif letter in "}]" and brackets:
            brackets.pop()
        elif letter == ",":
            end, needed = place, brackets.copy()
    return end, needed, brackets, in_string
