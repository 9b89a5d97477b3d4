"""The items of a response, growing output by output, and the events for each change.

Follows OpenAI's API reference, "Streaming events" of `/v1/responses`. Text and reasoning items have one part. Knows
nothing of the response around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nbgen.messages import AnswerPart, GenerateOutput, ToolCall
from nbgen.protocols.openai_logprobs import chat_logprobs
from nbgen.protocols.responses_items import ID_PREFIXES
from nbgen.protocols.responses_tools import Members

Event = dict[str, Any]
Status = str


class Kind(NamedTuple):
    """A type of text items: the type of their part, the field that holds it, and the names of their events."""

    type: str
    part: str
    text_events: str
    part_events: str = "content_part"
    field: str = "content"


MESSAGE = Kind("message", "output_text", "output_text")
REASONING = Kind("reasoning", "reasoning_text", "reasoning_text")
#: The form of reasoning for clients that ask for a summary.
SUMMARY = Kind("reasoning", "summary_text", "reasoning_summary_text", "reasoning_summary_part", "summary")


class TextItem:
    """One item made of text, a message or a reasoning item, and its events."""

    def __init__(self, kind: Kind, id: str, index: int, logprobs: bool) -> None:
        self.kind = kind
        self._id = id
        self._index = index
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] | None = [] if logprobs and kind is MESSAGE else None

    def fields(self, status: Status) -> dict[str, Any]:
        """The item's JSON with the text so far."""
        own: dict[str, Any] = (
            {"role": "assistant"} if self.kind is MESSAGE else {"summary": [], "encrypted_content": None}
        )
        part = [self._part(self._text)] if self._pieces else []
        return {"id": self._id, "type": self.kind.type, "status": status, **own, self.kind.field: part}

    def begin(self) -> list[Event]:
        """The events that open the item and its empty part."""
        item = {"type": "response.output_item.added", "output_index": self._index, "item": self.fields("in_progress")}
        self._pieces.append("")
        return [item, self._event(f"{self.kind.part_events}.added", part=self._part(""))]

    def grow(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        """Append text to the item; returns the event for it."""
        self._pieces.append(text)
        name = f"{self.kind.text_events}.delta"
        if self.kind is not MESSAGE:
            return self._event(name, delta=text)
        if self._logprobs is not None:
            self._logprobs += logprobs
        return self._event(name, delta=text, logprobs=logprobs)

    def end(self, status: Status) -> list[Event]:
        """The events that close the item, complete or cut."""
        more = {"logprobs": self._logprobs or []} if self.kind is MESSAGE else {}
        return [
            self._event(f"{self.kind.text_events}.done", text=self._text, **more),
            self._event(f"{self.kind.part_events}.done", part=self._part(self._text)),
            {"type": "response.output_item.done", "output_index": self._index, "item": self.fields(status)},
        ]

    @property
    def _text(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def _part(self, text: str) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": (self._logprobs or []) if text else []} if self.kind is MESSAGE else {}
        return {"type": self.kind.part, "text": text, **more}

    def _event(self, name: str, **fields: Any) -> Event:
        place = {"item_id": self._id, "output_index": self._index, f"{self.kind.field}_index": 0}
        return {"type": f"response.{name}", **place, **fields}


class CallItem:
    """A call, and its events."""

    def __init__(self, call: ToolCall, id: str, index: int, members: Members) -> None:
        space, name = members.get(call.name, ("", call.name))
        self._named = {"id": id, "type": "function_call", "call_id": call.id, "name": name}
        self._named |= {"namespace": space} if space else {}
        self._index = index
        self._pieces: list[str] = []

    def fields(self, status: Status) -> dict[str, Any]:
        """The item's JSON with the arguments so far."""
        return {**self._named, "status": status, "arguments": self.arguments}

    def begin(self) -> list[Event]:
        """The event that opens the item."""
        return [self._item("added", "in_progress")]

    def grow(self, new: str) -> list[Event]:
        """Append to the arguments; returns the event for it, unless `new` is empty."""
        self._pieces.append(new)
        return [self._event("delta", delta=new)] if new else []

    def end(self, status: Status) -> list[Event]:
        """The events that close the item, complete or cut."""
        done = self._event("done", name=self._named["name"], arguments=self.arguments)
        return [done, self._item("done", status)]

    @property
    def arguments(self) -> str:
        """The arguments so far, as JSON text."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def _item(self, kind: str, status: Status) -> Event:
        return {"type": f"response.output_item.{kind}", "output_index": self._index, "item": self.fields(status)}

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self._named["id"], "output_index": self._index}
        return {"type": f"response.function_call_arguments.{kind}", **place, **fields}


class Output:
    """All items of one response. Their ids follow from `id`, so that the same outputs make the same items again."""

    def __init__(self, id: str, *, logprobs: bool, summary: bool, members: Members) -> None:
        """With `summary`, reasoning is sent as a summary; otherwise as reasoning text."""
        self._members = members
        self._id = id
        self._logprobs = logprobs
        self._thoughts = SUMMARY if summary else REASONING
        #: Log-probabilities of tokens whose text has not come yet.
        self._pending: list[dict[str, Any]] = []
        self._done: list[dict[str, Any]] = []
        self._open: TextItem | CallItem | None = None

    def items(self) -> list[dict[str, Any]]:
        """The JSON of all items so far."""
        return [*self._done, self._open.fields("in_progress")] if self._open else list(self._done)

    def add(self, output: GenerateOutput) -> list[Event]:
        """Append an output; returns the events for it."""
        parts: Sequence[AnswerPart] = output.parts or ()
        if output.parts is None and output.text:
            parts = [AnswerPart(content=output.text)]
        if self._logprobs:
            self._pending += chat_logprobs(output.logprobs)["content"]
        events: list[Event] = []
        for part in parts:
            if part.tool_call_delta:
                events += self._grow_call(part.tool_call_delta, part.tool_call_delta.arguments)
            elif part.tool_call:
                events += self._end_call(part.tool_call, "incomplete" if part.cut else "completed")
            elif part.reasoning:
                events += self._grow(self._thoughts, part.reasoning)
            elif part.content:
                events += self._grow(MESSAGE, part.content)
            self._pending = []
        return events

    def end(self, status: Status) -> list[Event]:
        """Close the last item, and return its events; an answer without any item gets an empty message."""
        events = [] if self._open or self._done else self._begin(MESSAGE)
        return events + self._close(status)

    def _grow(self, kind: Kind, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, TextItem) or self._open.kind is not kind:
            events = [*self._close("completed"), *self._begin(kind)]
        assert isinstance(self._open, TextItem)
        return [*events, self._open.grow(text, self._pending)]

    def _begin(self, kind: Kind) -> list[Event]:
        self._open = TextItem(kind, self._next_id(kind.type), len(self._done), self._logprobs)
        return self._open.begin()

    def _grow_call(self, call: ToolCall, new: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, CallItem):
            events = self._close("completed")
            self._open = CallItem(call, self._next_id("function_call"), len(self._done), self._members)
            events += self._open.begin()
        return [*events, *self._open.grow(new)]

    def _end_call(self, call: ToolCall, status: Status) -> list[Event]:
        told = len(self._open.arguments) if isinstance(self._open, CallItem) else 0
        return [*self._grow_call(call, call.arguments[told:]), *self._close(status)]

    def _close(self, status: Status) -> list[Event]:
        if self._open is None:
            return []
        events = self._open.end(status)
        self._done.append(self._open.fields(status))
        self._open = None
        return events

    def _next_id(self, type: str) -> str:
        return f"{ID_PREFIXES[type]}{self._id.removeprefix('resp_')}{len(self._done):04x}"
