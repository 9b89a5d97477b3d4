"""The message of a chat's choice, whole or piece by piece: text, thoughts, calls. Knows no event and no request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nbgen.messages import AnswerPart, ToolCall
from nbgen.protocols.sample import Sample


def message(sample: Sample) -> dict[str, Any]:
    """What the model said, as OpenAI and SGLang have it."""
    calls = [call_fields(call) for call in sample.tool_calls]
    content = sample.content or (None if calls else "")
    found = {"role": "assistant", "content": content, "reasoning_content": sample.reasoning or None}
    return {**found, "tool_calls": calls} if calls else found


def deltas(parts: Iterable[AnswerPart], calls: int) -> Iterator[dict[str, Any]]:
    """What is new, a delta for each kind of part in a row; `calls` came before."""
    for part in parts:
        if part.tool_call:
            yield {"tool_calls": [{"index": calls, **call_fields(part.tool_call)}]}
            calls += 1
        elif part.reasoning:
            yield {"reasoning_content": part.reasoning}
        elif part.content:
            yield {"content": part.content}


def call_fields(call: ToolCall) -> dict[str, Any]:
    """A call as answers have it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
