"""Arguments as `{key:<|"|>text<|"|>,days:3}`: JSON except that keys have no quotes, and strings are between marks.

Gemma's models write so, and at times `(key=<|"|>text<|"|>)` in its place. Knows no templates and no tokens.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

#: The option that tells transformers' JSON parser the marks.
MARKS = "string_delims"
_WORDS = {"None": "null", "True": "true", "False": "false"}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def content_args(mark: str) -> dict[str, Any]:
    """The parser's options for such arguments, in a field of a response template."""
    return {"unquoted_keys": True, MARKS: [[mark, mark]]}


def as_json(text: str, args: dict[str, Any]) -> str:
    """The text of a field with these options as JSON, cut off where it is cut off; unchanged without marks."""
    marks = {mark for pair in args.get(MARKS, []) for mark in pair}
    if len(marks) != 1:
        return text
    (mark,) = marks
    begun = next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
    return _pieces(mark).sub(_as_json, _braced(text[: len(text) - begun], mark))


def _braced(text: str, mark: str) -> str:
    """The text with braces for round brackets; a last bracket inside a string that is cut off is none of these."""
    body = text.strip()
    if not body.startswith("("):
        return text
    closed = body.endswith(")") and body.count(mark) % 2 == 0
    return f"{{{body[1:-1]}}}" if closed else f"{{{body[1:]}"


@lru_cache
def _pieces(mark: str) -> re.Pattern[str]:
    mark = re.escape(mark)
    return re.compile(
        rf"{mark}(?P<string>.*?)(?P<end>{mark}|\Z)"
        r'|"(?:[^"\\]|\\.)*+"?'
        r"|(?P<sign>[:=,])\s*+"
        r"|(?P<word>[\w.$+-]++)(?=\s*+(?P<after>[:=,\]}]?))",
        re.DOTALL,
    )


def _as_json(found: re.Match[str]) -> str:
    string, end, sign, word, after = found.group("string", "end", "sign", "word", "after")
    if string is not None:
        written = json.dumps(string, ensure_ascii=False)
        return written if end else written[:-1]
    if sign is not None:
        return f"{sign.replace('=', ':')} "
    return found.group() if word is None else _word(word, after)


def _word(word: str, after: str) -> str:
    """A key, a string without marks, a number, or one of JSON's constants, as JSON."""
    value = _WORDS.get(word, word)
    if after not in (":", "=") and (value in _WORDS.values() or _NUMBER.fullmatch(value)):
        return value
    written = json.dumps(word, ensure_ascii=False)
    return written if after else written[:-1]
