"""Messages as chat templates read them: transformers' conventions, and what single templates want besides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nbgen.engine.written_calls import written_calls
from nbgen.messages import ChatMessage, ToolCall

if TYPE_CHECKING:
    from nbgen.engine.answer_format import AnswerFormat
    from nbgen.engine.call_format import CallFormat

#: The field of a turn that most templates read thoughts from.
THOUGHT = "reasoning_content"


def template_message(message: ChatMessage, content: Any, answers: AnswerFormat | None = None) -> dict[str, Any]:
    """A turn with this content, and with nothing else than it has, for a template of this format."""
    form, thought = (answers.calls, answers.thought) if answers else (None, None)
    calls, thinks = message.tool_calls, message.reasoning
    if calls and form and form.in_content:
        content, calls = _with_text(content, _written(form, calls)), []
    if calls and thought and thought.opening and thinks and isinstance(content, str):
        # Beside calls such a template takes one of both, and renders either as a thought.
        thinks, content = "\n\n".join(filter(None, (thinks, content))), ""
    more = {
        thought.name if thought else THOUGHT: thinks,
        "tool_calls": [_call(call, bool(form and form.arguments_as_text)) for call in calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return {"role": message.role, "content": content, **{name: value for name, value in more.items() if value}}


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    return f"{content or ''}{text}"


def _written(form: CallFormat, calls: list[ToolCall]) -> str:
    """What the model itself writes to make these calls."""
    found = [(call.name, _parsed(call.arguments)) for call in calls]
    text = written_calls([(name, arguments if isinstance(arguments, dict) else {}) for name, arguments in found])
    return form.before.removesuffix("[") + text + form.after.removeprefix(")]")


def _call(call: ToolCall, as_text: bool) -> dict[str, Any]:
    arguments = call.arguments if as_text else _parsed(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    """The arguments as an object, which most templates write out themselves; text that is none stays text."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments
