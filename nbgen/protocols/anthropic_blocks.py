"""The content of an Anthropic message: blocks of text, thoughts and calls, whole or as the events of a stream.

Follows Anthropic's API reference, "Streaming messages". Knows nothing of the message around them.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from nbgen.messages import AnswerPart
from nbgen.protocols.sample import Sample

Event = dict[str, Any]
#: A block's type and, for a call, its id.
Key = tuple[str, str]
NO_BLOCK: Key = ("", "")
#: For each type of block, the type of its deltas, and the field that they extend.
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def content(sample: Sample, signature: str, *, thoughts: bool) -> list[dict[str, Any]]:
    """The blocks of an answer. Thinking blocks are empty unless `thoughts`; a call that was cut is left out."""
    found: list[dict[str, Any]] = []
    parts = [AnswerPart(content=sample.text)] if sample.parts is None else sample.parts
    for (kind, _), each in groupby(parts, _key):
        row = list(each)
        call, text = row[-1].tool_call, _text(row)
        if kind == "thinking":
            found.append({"type": kind, kind: text if thoughts else "", "signature": signature})
        elif call and not row[-1].cut:
            inputs = msgspec.Raw(as_object(call.arguments).encode())
            found.append({"type": kind, "id": call.id, "name": call.name, "input": inputs})
        elif text:
            found.append({"type": kind, kind: text})
    return found


class Blocks:
    """The same blocks as the events of a stream."""

    def __init__(self, signature: str, *, thoughts: bool) -> None:
        self._signature = signature
        self._thoughts = thoughts
        #: The index of the open or latest block, and the open block's key.
        self._index, self._open = -1, NO_BLOCK
        #: How much was sent: parts, characters of an answer without parts, and characters of the open call.
        self._parts = self._text = self._told = 0

    def news(self, sample: Sample) -> list[Event]:
        """The events for what is new."""
        return [event for key, row in groupby(self._new(sample), _key) for event in self._of(key, list(row))]

    def close(self) -> list[Event]:
        """The events that end the open block, if there is one."""
        if self._open == NO_BLOCK:
            return []
        signed = {"type": "signature_delta", "signature": self._signature}
        found = [self._event("delta", delta=signed)] if self._open[0] == "thinking" else []
        self._open, self._told = NO_BLOCK, 0
        return [*found, self._event("stop")]

    def _new(self, sample: Sample) -> list[AnswerPart]:
        if sample.parts is None:
            text, self._text = sample.text[self._text :], len(sample.text)
            return [AnswerPart(content=text)] if text else []
        parts, self._parts = sample.parts[self._parts :], len(sample.parts)
        return parts

    def _of(self, key: Key, row: list[AnswerPart]) -> list[Event]:
        kind, _ = key
        if kind == "tool_use":
            return self._of_call(key, row)
        text = _text(row)
        if kind == "thinking":
            return self._grow(key, {"type": kind, kind: "", "signature": ""}, text if self._thoughts else "")
        return self._grow(key, {"type": kind, kind: ""}, text) if text else []

    def _of_call(self, key: Key, row: list[AnswerPart]) -> list[Event]:
        """A call's input as it is written, or all at once if none of it was sent before it was complete."""
        deltas, last = [part.tool_call_delta for part in row if part.tool_call_delta], row[-1]
        call = last.tool_call or deltas[0]
        begun = bool(deltas) or self._open == key
        if last.cut and not begun:
            return []
        new = "".join(delta.arguments for delta in deltas)
        if last.tool_call:
            new = call.arguments[self._told :] if begun else as_object(call.arguments)
        events = self._grow(key, {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, new)
        self._told += len(new)
        return [*events, *self.close()] if last.tool_call else events

    def _grow(self, key: Key, empty: dict[str, Any], text: str) -> list[Event]:
        """Append to the block of this key, opening it first if another one is open."""
        events: list[Event] = []
        if self._open != key:
            events = self.close()
            self._index, self._open = self._index + 1, key
            events.append(self._event("start", content_block=empty))
        kind, field = DELTAS[key[0]]
        return [*events, self._event("delta", delta={"type": kind, field: text})] if text else events

    def _event(self, name: str, **fields: Any) -> Event:
        return {"type": f"content_block_{name}", "index": self._index, **fields}


def as_object(arguments: str) -> str:
    """A call's arguments as a JSON object: what the model wrote, wrapped into an object if it is none."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode({"arguments": arguments}).decode()
    return arguments or "{}"


def _key(part: AnswerPart) -> Key:
    if call := part.tool_call or part.tool_call_delta:
        return "tool_use", call.id
    return ("thinking" if part.reasoning else "text"), ""


def _text(row: list[AnswerPart]) -> str:
    return "".join(part.reasoning or part.content for part in row)
