"""An answer in its parts, as it is written: text, thoughts, calls of tools. transformers' parser finds them.

Knows neither tokens nor sequences. What cannot be read as what it began like is text.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import ResponseTemplate

from nbgen.engine.call_format import BARE_CALLS, LISTED_CALLS, NAMED_CALLS
from nbgen.engine.cut_calls import BegunCall, Left, left_open, read_begun
from nbgen.engine.thought_format import LEAD, THOUGHTS
from nbgen.engine.written_calls import read_arguments, read_calls
from nbgen.messages import AnswerPart, ToolCall

CALLS = "tool_calls"
#: What some templates demand of a call's id: nine letters and digits.
ID_LENGTH = 9
#: How transformers reads arguments that have a tag each.
TAGGED = "xml-inline"
#: The fields of calls that are read here.
WRITTEN = (LISTED_CALLS, BARE_CALLS, NAMED_CALLS)
#: Characters that transformers' parser gets at once: it searches all of them again at each part.
AT_ONCE = 64

log = logging.getLogger(__name__)


class AnswerParser:
    """Reads one answer. White space beside a thought or a call belongs to no part; all other is text."""

    def __init__(self, template: ResponseTemplate, prompt: str, tools: list[dict[str, Any]]) -> None:
        """`prompt` is its end at least: what it opened, the answer begins in."""
        self._template = template
        self._tools = tools
        self._parser = ResponseParser(template, prompt, tools=[*tools])
        before = self._parser.initial_events
        #: White space that is text, unless a thought or a call comes right after it.
        self._space = ""
        #: Whether white space that comes next would be beside a thought or a call.
        self._beside = bool(before) and before[-1]["field"] != "content"
        self._begun = False
        self._told: set[str] = set()
        #: All that came, and what the prompt had begun.
        self._pieces: list[str] = []
        self._inside = before[-1]["field"] if before and before[-1]["type"] != "region_close" else None
        #: What has come since a call began that is not whole; None between calls.
        self._call: str | None = None
        #: What is known to be in it.
        self._body = ""

    def feed(self, text: str, *, last: bool, cut: bool = False) -> list[AnswerPart]:
        """The parts that are certain after more text; all of them after the `last`, where it may be `cut`."""
        self._pieces.append(text)
        pieces = (text[at : at + AT_ONCE] for at in range(0, len(text), AT_ONCE))
        parts = [part for piece in pieces for part in self._read(piece, last=False)]
        return [*parts, *self._rest(cut=cut)] if last else parts

    def _rest(self, *, cut: bool) -> list[AnswerPart]:
        """The last parts."""
        try:
            if cut and (left := self._left()) is not None:
                return [] if left.partial else self._cut_calls(left)
        except Exception:  # as in `_read`
            log.warning("what was cut cannot be read as a call", exc_info=True)
        return self._read("", last=True)

    def _read(self, text: str, *, last: bool) -> list[AnswerPart]:
        since = (self._call or "") + text
        try:
            events = self._parser.feed(text)
            if last:
                events += self._parser.finalize()[1]
            parts = [part for event in events for part in self._parts(event)]
            if self._call is not None:
                self._call = self._body + self._parser._buffer[self._parser._pos :]  # it may be a tag's beginning
        except Exception:  # whatever a library of patterns, or of JSON, raises at a text: this is no call
            self._parser, self._call = ResponseParser(self._template, "", tools=[*self._tools]), None
            parts = self._as_text(since)
        return [*parts, *self._as_text("")] if last else parts

    def _parts(self, event: dict[str, Any]) -> list[AnswerPart]:
        field, kind = event["field"], event["type"]
        if field == CALLS:
            return self._of_call(event)
        if kind == "region_chunk" and field in ("content", *THOUGHTS):
            return self._of_text(event["text"], "content" if field == "content" else "reasoning", field)
        if kind == "region_close" and field in WRITTEN:
            return self._of_written(event["value"], field)
        if kind == "region_open" and field not in WRITTEN:
            self._space = ""
        if kind == "region_close":
            self._ended(field)
        return []

    def _ended(self, field: str) -> None:
        self._begun = False
        self._beside = self._beside or field != LEAD
        if field != "content":
            self._space = ""

    def _of_text(self, text: str, name: str, field: str) -> list[AnswerPart]:
        if not self._begun and (self._beside or name == "reasoning"):
            text = text.lstrip()
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if not shown:
            return []
        joint = "" if self._begun or name not in self._told else self._template.fields[field].join or ""
        self._begun = True
        self._told.add(name)
        part = joint + shown
        return [AnswerPart(content=part) if name == "content" else AnswerPart(reasoning=part)]

    def _as_text(self, text: str) -> list[AnswerPart]:
        """What is no call after all, and the white space before it."""
        text, self._space = self._space + text, ""
        if not text:
            return []
        self._begun = True
        self._told.add("content")
        return [AnswerPart(content=text)]

    def _as_calls(self, calls: list[ToolCall]) -> list[AnswerPart]:
        """Those of functions that are there; if none is, nobody could answer, and what was wanted is text."""
        known = [call for call in calls if call.name in self._known]
        if calls and not known:
            return self._as_text("\n".join(map(_written, calls)))
        self._ended(CALLS)
        return [AnswerPart(tool_call=call) for call in known]

    def _left(self) -> Left | None:
        """What the answer left open, if it is a call, or the beginning of what is no text."""
        left = left_open(self._template.fields, "".join(self._pieces), self._inside)
        if left is None:
            return None
        wanted = left.field != BARE_CALLS if left.partial else left.field in (CALLS, *WRITTEN)
        return left if wanted else None

    def _cut_calls(self, left: Left) -> list[AnswerPart]:
        """Calls of known functions in what was left open. Without any it is nothing, or text if it began like text."""
        found = self._tagged() if self._template.fields[left.field].content == TAGGED else read_begun(left)
        calls = [call for call in found if call.name in self._known]
        if not calls and not left.opening.strip():
            return self._as_text(left.body)
        self._ended(CALLS)
        return [AnswerPart(tool_call=_made(call.name, call.arguments), cut=not call.whole) for call in calls]

    def _tagged(self) -> list[BegunCall]:
        """A call whose arguments have a tag each, with those that are whole: more would have come."""
        try:
            events = self._parser.finalize()[1]
            calls = [_call(event["value"]) for event in events if event["type"] == "region_close"]
        except Exception:  # as above
            return []
        return [BegunCall(call.name, call.arguments.removesuffix("}"), whole=False) for call in calls if call]

    @property
    def _known(self) -> set[str]:
        return {tool["function"]["name"] for tool in self._tools}

    def _of_written(self, value: Any, field: str) -> list[AnswerPart]:
        """Calls that are a text, or whose arguments are; bare ones only where all functions are there."""
        text = value if isinstance(value, str) else value["arguments"]
        try:
            found = read_calls(text) if isinstance(value, str) else [(value["name"], read_arguments(text))]
            calls = [_made(name, arguments) for name, arguments in found]
        except (ValueError, RecursionError):
            calls = []
        if not calls or (field == BARE_CALLS and not self._known.issuperset(call.name for call in calls)):
            return self._as_text(text)
        return self._as_calls(calls)

    def _of_call(self, event: dict[str, Any]) -> list[AnswerPart]:
        if event["type"] == "region_open":
            self._call = self._body = ""
        if event["type"] == "region_chunk":
            self._body += event["text"]
        if event["type"] != "region_close":
            return []
        value, self._call = event["value"], None
        calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
        found = [call for call in calls if call is not None]
        return self._as_calls(found) if len(found) == len(calls) else self._as_text(self._body)


def _call(value: Any) -> ToolCall | None:
    """A call as a response template shapes it; None where it is none."""
    function = value.get("function") if isinstance(value, dict) else None
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    return _made(name, arguments)


def _written(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


def _made(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    """Raises ValueError for a name with half a character, and for numbers that JSON does not know."""
    name.encode()
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair, which no message can carry, stays the escape that the model wrote.
    text = text.encode("utf-8", "backslashreplace").decode()
    return ToolCall(id=uuid.uuid4().hex[:ID_LENGTH], name=name, arguments=text)
