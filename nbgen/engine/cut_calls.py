"""What an answer that was cut has of a call: the function's name, and its arguments as far as they had come.

What calls begin like is told by the fields of a response template. Knows neither tokens nor sequences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from nbgen.engine.written_calls import begun_calls

#: Characters of a beginning that is none of text; fewer might be.
TELLING = 4
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,;]*")
_NAME = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*')


class Left(NamedTuple):
    """What a text leaves open: a field, the text that opens it, the names in that, and what follows."""

    field: str
    opening: str
    named: Mapping[str, str]
    body: str
    #: Whether even the opening is cut.
    partial: bool


class BegunCall(NamedTuple):
    """A function's name, its arguments as JSON, and whether that is whole."""

    name: str
    arguments: str
    whole: bool


def left_open(fields: Mapping[str, ResponseTemplateField], text: str, begun: str | None) -> Left | None:
    """What the text, which stands in the field `begun` at first, opens and does not close; None where it is text."""
    place = 0
    if begun is not None and (close := fields[begun].close_re) is not None:
        if (closed := close.search(text)) is None:
            return None
        place = closed.end()
    nexts: dict[str, Any] = {}
    while (opened := _opening(fields, text, place, nexts) or _cut_opening(fields, text, place)) is not None:
        name, found = opened
        close = fields[name].close_re
        if found.partial or close is None or (closed := close.search(text, found.end())) is None:
            return Left(name, found.group(), found.groupdict(), text[found.end() :], found.partial)
        place = max(closed.end(), found.start() + 1)
    return None


def _opening(
    fields: Mapping[str, ResponseTemplateField], text: str, place: int, nexts: dict[str, Any]
) -> tuple[str, Any] | None:
    """The first field that the text opens from there on, and the match of its opening.

    `nexts` keeps each field's next match, so that a long text is searched once.
    """
    for name, field in fields.items():
        if field.open_re and (name not in nexts or (nexts[name] and nexts[name].start() < place)):
            nexts[name] = field.open_re.search(text, place)
    found = [(name, match) for name, match in nexts.items() if match]
    return min(found, key=lambda each: (each[1].start(), -each[1].end()), default=None)


def _cut_opening(fields: Mapping[str, ResponseTemplateField], text: str, place: int) -> tuple[str, Any] | None:
    """The same where no opening is whole: one that the text's end cuts."""
    searched = (
        (name, field.open_re.search(text, place, partial=True)) for name, field in fields.items() if field.open_re
    )
    found = [(name, match) for name, match in searched if match and len(match.group().strip()) >= TELLING]
    return min(found, key=lambda each: each[1].start(), default=None)


def read_begun(left: Left) -> list[BegunCall]:
    """The calls in what was left open, of which the last may be cut; none where it has no name yet."""
    name, body = left.named.get("name"), left.body.lstrip()
    if name is not None:
        return [_begun(name, body)]
    if re.match(r"\[?\s*\{", body):
        return list(_of_objects(body.removeprefix("[")))
    return [
        BegunCall(name, json.dumps(arguments, ensure_ascii=False)[: None if whole else -1], whole)
        for name, arguments, whole in begun_calls(body)
    ]


def _of_objects(text: str) -> Iterator[BegunCall]:
    """Objects with a name and arguments, one after the other; a name comes before arguments, which may have others."""
    place = 0
    while (place := _end(_BETWEEN, text, place)) < len(text):
        try:
            _, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = len(text)
        name, arguments = _NAME.search(text, place, end), _ARGUMENTS.search(text, place, end)
        if name is None or (arguments is not None and arguments.start() < name.start()):
            return
        try:
            function = json.loads(name.group(1), strict=False)
        except ValueError:  # an escape that JSON does not know
            return
        yield _begun(function, text[arguments.end() : end] if arguments else "")
        place = end


def _end(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return found.end() if found else place


def _begun(name: str, arguments: str) -> BegunCall:
    """A call with arguments at the beginning of this text, which may be written as text themselves."""
    try:
        value, _ = _DECODER.raw_decode(arguments + ('"' if arguments.startswith('"') else ""))
        written = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return BegunCall(name, arguments, whole=False)
    if isinstance(value, str):
        return _begun(name, value) if not value.startswith('"') else BegunCall(name, value, whole=False)
    return BegunCall(name, written, whole=isinstance(value, dict))
