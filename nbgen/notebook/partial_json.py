"""The value of JSON that is still being written: what is there so far, with open ends closed.

Knows the grammar of RFC 8259 as far as brackets, strings and commas go.
"""

from __future__ import annotations

import json
from typing import Any

_CLOSERS = {"{": "}", "[": "]"}


def parse_partial(text: str) -> Any:
    """The value as far as it is known; None before it begins. Raises ValueError for what is no JSON."""
    if not text.strip():
        return None
    safe, open_brackets, in_string = _scan(text)
    try:
        return json.loads(text.rstrip("\\") + '"' * in_string + "".join(reversed(open_brackets)))
    except ValueError:
        return json.loads(safe)


def _scan(text: str) -> tuple[str, list[str], bool]:
    """The text up to the last whole item, closed; the brackets open at the end; whether a string is."""
    safe, brackets, in_string, escaped = "null", list[str](), False, False
    for place, letter in enumerate(text):
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            in_string = True
        elif letter in _CLOSERS:
            brackets.append(_CLOSERS[letter])
            safe = text[: place + 1] + "".join(reversed(brackets))
        elif letter in "}]" and brackets:
            brackets.pop()
        elif letter == ",":
            safe = text[:place] + "".join(reversed(brackets))
    return safe, brackets, in_string
