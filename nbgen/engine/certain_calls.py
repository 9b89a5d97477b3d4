"""Calls whose form a grammar enforces: their arguments are streamed verbatim while they are written.

Streamed text cannot be taken back, so other calls are returned only once they are read in full. Knows no templates.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nbgen.engine.open_call import JsonValue
from nbgen.messages import AnswerPart, ToolCall

#: Some templates demand call ids of nine letters and digits.
ID_LENGTH = 9


class CallBegins(NamedTuple):
    """Texts that a grammar enforces before a call's JSON arguments, mapped to the function's name.

    `opening` texts begin a field of calls, `following` ones come after the arguments of another call of that field.
    """

    opening: Mapping[str, str] = {}
    following: Mapping[str, str] = {}


NO_BEGINS = CallBegins()


class CertainCalls:
    """The certain calls of one field, searched from `start` on; the first must begin at `latest` or before."""

    def __init__(self, begins: CallBegins, start: int, latest: int) -> None:
        #: Calls that have begun.
        self.count = 0
        self._begins, self._following = begins
        #: Where the arguments begin, or the next call may begin; and up to where they were streamed.
        self._start = self._told = start
        self._latest = latest
        self._call = ToolCall(id="", name="", arguments="")
        self._arguments: JsonValue | None = None

    def read(self, text: str) -> Iterator[AnswerPart]:
        """The new parts of these calls."""
        while (value := self._arguments or self._begun(text)) is not None:
            value.read(text, len(text))
            if value.end is not None:
                yield AnswerPart(tool_call=self._with(text[self._start : value.end]))
                self._begins, self._arguments = self._following, None
                self._start = self._latest = value.end
                continue
            new, self._told = text[self._told : value.broken], value.broken or len(text)
            if new:
                yield AnswerPart(tool_call_delta=self._with(new))
            return

    def rest(self, text: str) -> Iterator[AnswerPart]:
        """At the end of the text: the call whose arguments are not complete, if any."""
        if self._arguments is not None:
            yield AnswerPart(tool_call=self._with(text[self._start : self._told]), cut=True)

    def _begun(self, text: str) -> JsonValue | None:
        """The arguments of the next call, once they begin."""
        for begin, name in self._begins.items():
            place = text.find(begin, self._start, self._latest + len(begin))
            if place >= 0 and text.startswith("{", place + len(begin)):
                self.count += 1
                self._start = self._told = place + len(begin)
                self._call = ToolCall(id=new_id(), name=name, arguments="")
                self._arguments = JsonValue(self._start)
                break
        return self._arguments

    def _with(self, arguments: str) -> ToolCall:
        return ToolCall(id=self._call.id, name=self._call.name, arguments=arguments)


def new_id() -> str:
    """An id for a call."""
    return uuid.uuid4().hex[:ID_LENGTH]
