"""Splits an answer into parts while it is written: text, thoughts, tool calls. A response template describes them.

What cannot be read as a call is returned as text, unchanged. Knows neither tokens nor sequences.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.content_parsers import process_field
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, ResponseTemplateField

from nbgen.engine import tagged_arguments
from nbgen.engine.call_format import (
    BARE,
    BARE_CALLS,
    BARE_OBJECTS,
    CALL_FIELDS,
    CALLS,
    END_OF_CALLS,
    LISTED_CALLS,
    NEXT_KEY,
)
from nbgen.engine.certain_calls import NO_BEGINS, CallBegins, CertainCalls, new_id
from nbgen.engine.cut_calls import BegunCall, read_begun
from nbgen.engine.marked_arguments import as_json
from nbgen.engine.open_call import TAGGED, OpenCall, first_delimiter
from nbgen.engine.thought_format import LEAD, THOUGHTS
from nbgen.engine.written_calls import read_calls
from nbgen.messages import AnswerPart, ToolCall

#: Characters searched at once: those that follow a delimiter are searched again after it.
AT_ONCE = 64
#: Fewest characters by which the beginning of a tag is told from text.
TELLING = 4

log = logging.getLogger(__name__)

#: Yields parts, and returns whether the text that came may contain more.
Reading = Generator[AnswerPart, None, bool]


class AnswerParser:
    """Reads one answer. White space beside a thought or a call belongs to no part; all other is text."""

    def __init__(
        self,
        template: ResponseTemplate,
        prompt: str,
        tools: list[dict[str, Any]],
        *,
        parallel: bool = True,
        begins: CallBegins = NO_BEGINS,
    ) -> None:
        """`prompt` may be its end only: it shows in which part the answer begins. Unless `parallel`, one call counts.

        Calls that start with one of the `begins` are certain.
        """
        self._template = template
        self._parallel = parallel
        self._tools = tools
        self._known = {tool["function"]["name"] for tool in tools}
        self._casts = ResponseParser(template, "", tools=[tagged_arguments.typed(tool["function"]) for tool in tools])
        #: The part of the prompt that belongs to the answer, then the answer so far.
        self._text = template.truncate_past_last_anchor(prompt)
        #: Up to where the text was searched, and up to where it was returned or belongs to no part.
        self._sought = self._told = 0
        #: The current field of the template, where it begins, and the open call in it, if any.
        self._field, self._field_start = template.implicit, 0
        self._call: OpenCall | None = None
        #: The open call's certain calls; how certain calls begin, and from where on: one that the prompt opened is not.
        self._certain = CertainCalls(NO_BEGINS, 0, 0)
        self._begins, self._answer_start = NO_BEGINS, 0
        #: Where the last call ended.
        self._call_end: int | None = None
        #: Whether text of this field was returned, whether it is beside a thought or call, whether a call was returned.
        self._begun = self._beside = self._called = False
        self._fields_told: set[str] = set()
        self._continue_prompt()
        self._begins, self._answer_start = begins, len(self._text)

    def _continue_prompt(self) -> None:
        list(self._read())
        self._told, self._beside = len(self._text), self._beside and not self._begun
        self._begun = self._called = False
        self._fields_told.clear()

    def feed(self, text: str, *, last: bool, cut: bool = False) -> list[AnswerPart]:
        """The parts that are certain after more text; all after the `last`; `cut` says that the answer was cut off."""
        parts: list[AnswerPart] = []
        for at in range(0, len(text), AT_ONCE):
            piece = text[at : at + AT_ONCE]
            self._text += piece
            if not piece.isspace():  # a run of white space is searched once, with what follows it
                parts += self._read()
        if last:
            parts += self._read(last=True, cut=cut)
        return [*parts, *self._in_thought()] if last and not cut else parts

    def _in_thought(self) -> list[AnswerPart]:
        """The calls at the end of an unclosed thought: the model left out the tag that ends the thought."""
        over = not self._known or (self._called and not self._parallel)
        if over or self._field not in THOUGHTS or self._template.implicit in THOUGHTS:
            return []
        fields = {name: field for name, field in self._template.fields.items() if name not in THOUGHTS}
        inner = AnswerParser(replace(self._template, fields=fields), "", self._tools, parallel=self._parallel)
        found = inner.feed(self._text[self._field_start :], last=True)
        return [part for part in found if part.tool_call] if found and found[-1].tool_call else []

    def _read(self, *, last: bool = False, cut: bool = False) -> Iterator[AnswerPart]:
        while (yield from self._in_text(last, cut) if self._call is None else self._in_call(self._call, last, cut)):
            pass

    def _in_text(self, last: bool, cut: bool) -> Reading:
        found, sure = first_delimiter(self._watched(), self._text, self._sought, last=last)
        if found is None:
            self._sought = self._cut_opening() if cut else sure
            yield from self._tell(self._sought, whole=last and self._sought == len(self._text))
            return False
        yield from self._tell(found.match.start())
        self._sought = found.match.end()
        if found.closes:
            self._sought += self._field == self._template.implicit and not found.match.group()
            self._turn_to(self._template.implicit)
        elif found.field.name in CALL_FIELDS:
            self._call = OpenCall(found)
            self._certain = self._certain_calls(self._call)
        elif found.field.name != END_OF_CALLS:
            self._turn_to(found.field.name)
        elif self._call_end is not None and not self._text[self._call_end : found.match.start()].strip():
            self._told = self._call_end = self._sought
        return True

    def _watched(self) -> list[tuple[ResponseTemplateField, bool]]:
        fields = self._template.fields
        closing = [(fields[self._field], True)] if self._field and fields[self._field].close_re else []
        opening = [(field, False) for field in fields.values() if field.open_re]
        return closing + (opening if self._field == self._template.implicit else [])

    def _turn_to(self, field: str | None) -> None:
        """Note that the text from here on is in `field`."""
        self._beside = self._beside or bool(self._fields_told) or LEAD not in (field, self._field)
        self._field, self._field_start, self._begun = field, self._sought, False
        self._told = self._sought

    def _tell(self, end: int, *, whole: bool = False) -> Iterator[AnswerPart]:
        """Return the text up to `end`. White space at its end waits for what follows, unless this is the `whole`."""
        text = self._text[self._told : end]
        if not self._begun and (self._beside or self._field in THOUGHTS):
            text = text.lstrip()
        shown = text if whole and self._field not in THOUGHTS else text.rstrip()
        self._told = max(self._told, end - len(text) + len(shown))
        if shown:
            yield from self._say(shown)

    def _say(self, text: str) -> Iterator[AnswerPart]:
        if self._field not in ("content", *THOUGHTS):
            return
        if not self._begun and self._field in self._fields_told:
            text = (self._template.fields[self._field].join or "") + text
        self._begun = True
        self._fields_told.add(self._field)
        yield AnswerPart(content=text) if self._field == "content" else AnswerPart(reasoning=text)

    def _cut_opening(self) -> int:
        """Where a tag begins at the end of a cut answer; the answer's end if none does."""
        openings = [f.open_re for f, closes in self._watched() if not closes and f.name not in BARE]
        found = (pattern.search(self._text, self._sought, partial=True) for pattern in openings)
        starts = (match.start() for match in found if match and _is_tag(match.group(), TELLING))
        return min(starts, default=len(self._text))

    def _certain_calls(self, call: OpenCall) -> CertainCalls:
        over = self._called and not self._parallel
        start = max(call.start - len(call.opening), self._answer_start)
        latest = call.start - 1 if call.opening.strip() else call.start
        return CertainCalls(NO_BEGINS if over or not call.is_json else self._begins, start, latest)

    def _in_call(self, call: OpenCall, last: bool, cut: bool) -> Reading:
        yield from self._tell_certain(self._certain.read(self._text))
        ended = call.ended(self._text, last=last and not cut)
        if ended is None:
            if last:
                self._call = None
                yield from self._cut(call)
            return last
        self._call = None
        yield from self._tell_certain(self._certain.rest(self._text))
        calls = [] if ended.body is None else self._calls(call, ended.body)
        known = self._certain.count or any(each.name in self._known for each in calls)
        self._sought = ended.end if calls or known else call.text_end(ended.end)
        self._call_end = self._sought if calls or known else self._call_end
        if known:
            yield from self._tell_calls(AnswerPart(tool_call=each) for each in calls[self._certain.count :])
        elif calls:  # of unknown functions, which nobody could answer: they are returned as text
            opening = self._text[self._told : call.start]
            space = opening[: len(opening) - len(opening.lstrip())] if self._begun or not self._beside else ""
            self._told = self._sought
            yield from self._say(space + "\n".join(map(_written, calls)))
        return True

    def _tell_certain(self, parts: Iterator[AnswerPart]) -> Iterator[AnswerPart]:
        """Return calls that the grammar enforces."""
        for part in parts:
            self._turn_to(self._template.implicit)
            self._called = True
            yield part

    def _tell_calls(self, parts: Iterator[AnswerPart]) -> Iterator[AnswerPart]:
        """Return the calls of known functions."""
        self._turn_to(self._template.implicit)
        for part in parts:
            if part.tool_call and part.tool_call.name in self._known and (self._parallel or not self._called):
                self._called = True
                yield part

    def _calls(self, call: OpenCall, body: str) -> list[ToolCall]:
        """The calls in `body`; none if one cannot be read, or if it is bare and calls an unknown function."""
        try:
            calls = self._read_calls(call, body)
        except Exception:  # a regex or JSON library may raise anything: then the text is no call
            return []
        return calls if call.field.name not in BARE or all(each.name in self._known for each in calls) else []

    def _read_calls(self, call: OpenCall, body: str) -> list[ToolCall]:
        value = self._casts._coerce_tool_calls(self._read_field(call, as_json(body, call.field.content_args)))
        if call.field.name in (LISTED_CALLS, BARE_CALLS):
            return [_made(name, arguments) for name, arguments in read_calls(value)]
        calls = value if isinstance(value, list) else [value]
        if call.field.content == TAGGED:
            for each in (one["function"] for one in calls):
                tagged_arguments.read(self._casts._tool_params.get(each["name"], {}), each["arguments"])
        return [_call(each) for each in calls]

    def _read_field(self, call: OpenCall, body: str) -> Any:
        """The field's value by the template, or else calls of known functions in similar objects."""
        field = self._of_function(call) if call.field.content == TAGGED else call.field
        try:
            return process_field(body, field, call.named)
        except (ValueError, KeyError):
            bare = call.field.name != BARE_OBJECTS  # a name alone would be text there
            found = read_calls(body, bare=bare) if call.field.name in (CALLS, BARE_OBJECTS) else []
            if not found or not self._known.issuperset(name for name, _ in found):
                raise
            return [{"function": {"name": name, "arguments": arguments}} for name, arguments in found]

    def _of_function(self, call: OpenCall) -> ResponseTemplateField:
        """The field of tagged arguments, changed so that the next tag must have a name that the function knows."""
        if not (names := self._casts._tool_params.get(call.named.get("name", ""))):
            return call.field
        args, known = call.field.content_args, "|".join(map(re.escape, names))
        pattern = args["tag_pattern"].replace(NEXT_KEY, f"(?:{known})")
        return replace(call.field, content_args=args | {"tag_pattern": pattern})

    def _cut(self, call: OpenCall) -> Iterator[AnswerPart]:
        """Calls of known functions in one that was cut off. Without any, it is dropped, or is text if it may be."""
        yield from self._tell_certain(self._certain.rest(self._text))
        try:
            found = self._begun_calls(call, self._text[call.start :])[self._certain.count :]
            parts = [AnswerPart(tool_call=_made(each.name, each.arguments), cut=not each.whole) for each in found]
        except Exception:  # as above
            log.warning("what was cut cannot be read as a call", exc_info=True)
            self._sought = len(self._text)
            self._told = self._sought if self._certain.count else self._told
            return
        known = self._certain.count or any(each.name in self._known for each in found)
        self._sought = len(self._text) if known or call.first_close is None else call.first_close
        if known:
            yield from self._tell_calls(iter(parts))
        elif call.first_close is None and _is_tag(call.opening) and call.field.name not in BARE:
            self._told = self._sought

    def _begun_calls(self, call: OpenCall, body: str) -> list[BegunCall]:
        if call.field.content != TAGGED:
            return read_begun(call.named.get("name"), as_json(body, call.field.content_args))
        # With the complete arguments only: more would have come.
        return [BegunCall(each.name, each.arguments.removesuffix("}"), whole=False) for each in self._calls(call, body)]


def _is_tag(beginning: str, least: int = 1) -> bool:
    """Whether a call's beginning cannot be text: it has at least `least` characters and does not begin like a word."""
    text = beginning.strip()
    return len(text) >= least and not text[0].isalpha()


def _call(value: Any) -> ToolCall:
    """A call from the shape that a response template gives it. Raises ValueError for any other value."""
    function = value.get("function") if isinstance(value, dict) else None
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        raise ValueError("no call")
    return _made(name, arguments)


def _written(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'


def _made(name: str, arguments: dict[str, Any] | str) -> ToolCall:
    """Raises ValueError for a name with half a surrogate pair, and for numbers that JSON does not know."""
    name.encode()
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair, which no message can carry, stays the escape that the model wrote.
    text = text.encode("utf-8", "backslashreplace").decode()
    return ToolCall(id=new_id(), name=name, arguments=text)
