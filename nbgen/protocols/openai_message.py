"""The message of a chat's choice, whole or piece by piece: text, thoughts, calls. Knows no event and no request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from nbgen.messages import AnswerPart, ToolCall
from nbgen.protocols.sample import Sample


def message(sample: Sample) -> dict[str, Any]:
    """What the model said, as OpenAI and SGLang have it."""
    calls = [call_fields(part.tool_call) for part in sample.parts or () if part.tool_call]
    content = sample.content or (None if calls else "")
    found = {"role": "assistant", "content": content, "reasoning_content": sample.reasoning or None}
    return {**found, "tool_calls": calls} if calls else found


def deltas(parts: Iterable[AnswerPart], calls: int) -> Iterator[dict[str, Any]]:
    """What is new, a delta for each call and for all text of one kind in a row; `calls` came before."""
    for kind, row in groupby(parts, _kind):
        if kind == "tool_calls":
            for call in (part.tool_call for part in row if part.tool_call):
                yield {kind: [{"index": calls, **call_fields(call)}]}
                calls += 1
        elif text := "".join(part.reasoning or part.content for part in row):
            yield {kind: text}


def _kind(part: AnswerPart) -> str:
    """The field of a delta that it is in."""
    if part.tool_call:
        return "tool_calls"
    return "reasoning_content" if part.reasoning else "content"


def call_fields(call: ToolCall) -> dict[str, Any]:
    """A call as answers have it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
