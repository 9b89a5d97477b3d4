"""Finds where the body of a tool call ends in a growing answer. Knows nothing of what calls mean.

An end is reported only once no later text can change it, so it does not depend on how the text was split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from transformers.utils.chat_parsing.response_templates import ResponseTemplateField

from nbgen.engine.call_format import LISTED_CALLS
from nbgen.engine.written_calls import past

#: transformers' name for calls whose arguments have a tag each.
TAGGED = "xml-inline"
_SPACE = re.compile(r"\s*")
#: Outside of strings: brackets and quotes of a JSON value, and characters that no JSON value has.
_MARK = re.compile(r'["\[\]{}]|[^\s\w,:.+-]')
_IN_STRING = re.compile(r'["\\]')


class Delimiter(NamedTuple):
    """A place where a `field` opens, or `closes`, with the match of its pattern."""

    field: ResponseTemplateField
    closes: bool
    match: Any


def first_delimiter(
    watched: Iterable[tuple[ResponseTemplateField, bool]], text: str, place: int, *, last: bool
) -> tuple[Delimiter | None, int]:
    """The first delimiter from `place` on that more text (none if `last`) cannot change; and up to where none is."""
    found, sure = [], len(text)
    for field, closes in watched:
        match = (field.close_re if closes else field.open_re).search(text, place, partial=not last)
        if match and not last and _may_change(field, closes, match, text):
            sure = min(sure, match.start())
        elif match:
            found.append(Delimiter(field, closes, match))
    first = min(found, key=lambda each: (each.match.start(), -each.match.end(), each.field.name), default=None)
    return (first if first and (last or first.match.start() < sure) else None), sure


def _may_change(field: ResponseTemplateField, closes: bool, match: Any, text: str) -> bool:
    """Whether more text could change the match."""
    if match.partial:
        return True
    literals = field.close_literals if closes else field.open_literals
    if match.end() == len(text):
        grows = field.close_literal_can_extend if closes else field.open_literal_can_extend
        return literals is None or grows
    if literals is not None:
        return False
    more = match.re.match(text + "\0", match.start())
    return more is None or more.span() != match.span() or more.groupdict() != match.groupdict()


class Ended(NamedTuple):
    """The text between a call's tags, None if it is no call; and where the text goes on after it."""

    body: str | None
    end: int


class OpenCall:
    """One field with calls, from its opening tag on."""

    def __init__(self, opening: Delimiter) -> None:
        self.field = opening.field
        self.opening: str = opening.match.group()
        self.named: dict[str, str] = {key: value for key, value in opening.match.groupdict().items() if value}
        self.start: int = opening.match.end()
        #: The end of the first tag that would close it: there it ends if it turns out to be no call.
        self.first_close: int | None = None
        self._sought = self.start
        self._begins = False
        is_json = self.field.content == "json" and not self.field.content_args
        self._json = JsonValue(self.start) if is_json else None

    @property
    def is_json(self) -> bool:
        """Whether the field is a single JSON value."""
        return self._json is not None

    def ended(self, text: str, *, last: bool) -> Ended | None:
        """How the call ended. None while more text may decide that, which is never so with `last`."""
        if not self._begins:
            first = past(_SPACE, text, self.start)
            if first == len(text) and not last:
                return None
            if first < len(text) and not self._may_begin(text[first]):
                return Ended(None, self.start)
            self._begins = True
        return self._tagged_end(text, last) if self._json is None else self._json_end(self._json, text, last)

    def text_end(self, end: int) -> int:
        """Where the text of what is no call ends, at most at `end`; always after the start of its opening tag."""
        return max(min(end, self.first_close or end), self.start - len(self.opening) + 1)

    def _may_begin(self, character: str) -> bool:
        """Whether a call may begin with this character. In prose that mentions the tag, something else follows."""
        if self._json is not None or self.field.content == "json":
            return character in ("[{(" if self.field.content_args else "[{")
        if self.field.content == TAGGED:
            tag = self.field.content_args["tag_pattern"].removeprefix(r"\s*")
            return character in "[<" or not tag.startswith(("<", r"\["))
        return self.field.name != LISTED_CALLS or character in "[{" or character.isidentifier()

    def _closing(self, text: str, last: bool) -> tuple[Any, int]:
        watched = [(self.field, True)] if self.field.close_re is not None else []
        found, sure = first_delimiter(watched, text, self._sought, last=last)
        if found is None:
            self._sought = sure
            return None, sure
        self._sought = max(found.match.end(), found.match.start() + 1)
        self.first_close = self.first_close or found.match.end()
        return found.match, found.match.start()

    def _tagged_end(self, text: str, last: bool) -> Ended | None:
        closing, _ = self._closing(text, last)
        if closing is not None:
            return Ended(text[self.start : closing.start()], closing.end())
        return Ended(text[self.start :], len(text)) if last else None

    def _json_end(self, json: JsonValue, text: str, last: bool) -> Ended | None:
        """Where its JSON value ends. A tag in a string closes nothing; a complete value needs no closing tag."""
        while json.end is None:
            closing, sure = self._closing(text, last)
            json.read(text, sure)
            if json.broken is not None:
                return Ended(None, json.broken)
            if json.end is None and closing is None:
                return Ended(None, len(text)) if last else None
            if json.end is None and not json.in_string:
                return Ended(None, closing.end())
        return self._after(json.end, text, last)

    def _after(self, end: int, text: str, last: bool) -> Ended | None:
        """Skip a closing tag after the value; and an incomplete one at the very end of the text."""
        body, match = text[self.start : end], None
        if self.field.close_re is not None:
            match = self.field.close_re.match(text, past(_SPACE, text, end), partial=True)
        if match is not None and not last and _may_change(self.field, True, match, text):
            return None
        return Ended(body, match.end() if match else end)


class JsonValue:
    """Finds the end of a JSON object or list in a growing text; reads each character once."""

    def __init__(self, start: int) -> None:
        #: Where the value ends.
        self.end: int | None = None
        #: The end of the first character that no JSON value can have here.
        self.broken: int | None = None
        self.in_string = False
        self._place = start
        self._depth = 0

    def read(self, text: str, end: int) -> None:
        """Go on reading, up to `end`."""
        while self.end is None and self.broken is None:
            mark = (_IN_STRING if self.in_string else _MARK).search(text, self._place, end)
            if mark is None or (mark.group() == "\\" and mark.end() == end):  # the escaped character is still to come
                self._place = mark.start() if mark else max(end, self._place)
                return
            self._place = mark.end()
            self._pass(mark.group())

    def _pass(self, mark: str) -> None:
        if mark == '"':
            self.in_string = not self.in_string
        elif self.in_string:
            self._place += 1
        elif mark in "[{":
            self._depth += 1
        elif mark in "]}":
            self._depth -= 1
            self.end = self._place if self._depth == 0 else None
        else:
            self.broken = self._place
