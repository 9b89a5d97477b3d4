"""The message of a chat's choice, whole or piece by piece: text, reasoning, calls. Knows no event and no request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from nbgen.messages import AnswerPart, ToolCall
from nbgen.protocols.sample import Sample


def message(sample: Sample) -> dict[str, Any]:
    """The whole message, in OpenAI's and SGLang's shape."""
    calls = [call_fields(part.tool_call) for part in sample.parts or () if part.tool_call]
    content = sample.content or (None if calls else "")
    found = {"role": "assistant", "content": content, "reasoning_content": sample.reasoning or None}
    return {**found, "tool_calls": calls} if calls else found


class Deltas:
    """The message in the pieces of a stream."""

    def __init__(self) -> None:
        #: Number of calls that were sent whole, and of characters sent of the next call's arguments.
        self._calls = self._told = 0

    def of(self, parts: Iterable[AnswerPart]) -> Iterator[dict[str, Any]]:
        """The deltas of new parts: one for consecutive text of one kind, one or two for a call."""
        for (kind, _), row in groupby(parts, _kind):
            if kind == "tool_calls":
                yield from ({kind: [piece]} for piece in self._call(list(row)))
            elif text := "".join(part.reasoning or part.content for part in row):
                yield {kind: text}

    def _call(self, row: list[AnswerPart]) -> Iterator[dict[str, Any]]:
        """The first piece has the call's name, with all arguments if they are complete already."""
        deltas, whole = [part.tool_call_delta for part in row if part.tool_call_delta], row[-1].tool_call
        new = whole.arguments[self._told :] if whole else "".join(delta.arguments for delta in deltas)
        if self._told == 0:
            yield {"index": self._calls, **call_fields(whole or msgspec.structs.replace(deltas[0], arguments=""))}
        if new and not (whole and self._told == 0):
            yield {"index": self._calls, "function": {"arguments": new}}
        self._calls, self._told = (self._calls + 1, 0) if whole else (self._calls, self._told + len(new))


def _kind(part: AnswerPart) -> tuple[str, str]:
    """The field of a delta that the part goes into, and the id of its call."""
    if call := part.tool_call or part.tool_call_delta:
        return "tool_calls", call.id
    return ("reasoning_content" if part.reasoning else "content"), ""


def call_fields(call: ToolCall) -> dict[str, Any]:
    """A call as answers have it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
