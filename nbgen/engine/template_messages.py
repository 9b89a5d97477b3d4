"""Messages as chat templates read them: transformers' conventions. Knows no template."""

from __future__ import annotations

import json
from typing import Any

from nbgen.messages import ChatMessage, ToolCall


def template_message(message: ChatMessage, content: Any, *, arguments_as_text: bool = False) -> dict[str, Any]:
    """A turn with this content, and with nothing else than it has."""
    calls = [_call(call, arguments_as_text) for call in message.tool_calls]
    more = {
        "reasoning_content": message.reasoning,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return {"role": message.role, "content": content, **{name: value for name, value in more.items() if value}}


def _call(call: ToolCall, as_text: bool) -> dict[str, Any]:
    arguments = call.arguments if as_text else _parsed(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    """The arguments as an object, which most templates write out themselves; text that is none stays text."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments
