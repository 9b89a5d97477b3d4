"""Converts messages to what chat templates read: transformers' conventions, and what some templates want besides."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from nbgen.engine.call_format import NAMED_ID
from nbgen.engine.template_turns import ASK, Render
from nbgen.messages import ChatMessage, ToolCall

if TYPE_CHECKING:
    from nbgen.engine.answer_format import AnswerFormat
    from nbgen.engine.call_format import CallFormat

#: The key of a turn from which most templates read thoughts.
THOUGHT = "reasoning_content"


def with_one_system_turn(messages: Sequence[ChatMessage], render: Render) -> Sequence[ChatMessage]:
    """The messages; several system turns at their beginning become one if the template refuses or drops one of them.

    Turns with media stay as they are.
    """
    leading = list(takewhile(lambda message: message.role == "system", messages))
    if len(leading) < 2 or any(map(_has_media, leading)) or _shows_several(render):
        return messages
    return [ChatMessage(role="system", content="\n\n".join(each.text for each in leading)), *messages[len(leading) :]]


def _shows_several(render: Render) -> bool:
    told = ["Be brief.", "Be kind."]
    turns = [*({"role": "system", "content": each} for each in told), {"role": "user", "content": ASK}]
    try:
        text = render(turns, [], True)
    except Exception:  # a processor may render it, which may raise anything
        return False
    return all(each in text for each in told)


def adapted(messages: Sequence[ChatMessage], answers: AnswerFormat | None = None) -> list[ChatMessage]:
    """The messages; results of tools get the name of the function whose call they answer.

    If the template allows one call a turn, several calls become turns of their own, each followed by its result. If it
    needs ids of nine letters and digits, or ids with functions' names, such ids replace others.
    """
    form = answers.calls if answers else None
    if form and form.ids:
        messages = list(_with_ids(messages, named=form.ids == NAMED_ID))
    names: dict[str, str] = {}
    found: list[ChatMessage] = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        name = message.name or names.get(message.tool_call_id, "")
        found.append(msgspec.structs.replace(message, name=name) if message.role == "tool" else message)
    return list(_with_single_calls(found)) if form and form.single else found


def _with_ids(messages: Sequence[ChatMessage], *, named: bool) -> Iterator[ChatMessage]:
    """The messages with short ids of calls, or (`named`) with ids that contain the function's name."""
    ids: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            ids[call.id] = NAMED_ID.format(name=call.name, place=len(ids)) if named else _short(call.id)
        calls = [msgspec.structs.replace(call, id=ids[call.id]) for call in message.tool_calls]
        result = ids.get(message.tool_call_id, _short(message.tool_call_id))
        yield msgspec.structs.replace(message, tool_calls=calls, tool_call_id=result)


def _short(call_id: str) -> str:
    """A short id, the same for the same `call_id`; "" for ""."""
    known = not call_id or re.fullmatch("[a-zA-Z0-9]{9}", call_id)
    return call_id if known else hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _with_single_calls(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    yield from takewhile(_is_result, messages)
    for place, message in enumerate(messages):
        if not _is_result(message):
            yield from _of_single_calls(message, list(takewhile(_is_result, messages[place + 1 :])))


def _of_single_calls(message: ChatMessage, results: list[ChatMessage]) -> list[ChatMessage]:
    calls, left = message.tool_calls, list(results)
    first = msgspec.structs.replace(message, tool_calls=calls[:1])
    turns = [first, *(ChatMessage(role="assistant", tool_calls=[call]) for call in calls[1:])]
    told: list[ChatMessage] = []
    for turn, call in zip(turns[:-1], calls, strict=False):
        told.append(turn)
        if (found := next((each for each in left if each.tool_call_id == call.id), None)) is not None:
            left.remove(found)
            told.append(found)
    told += [turns[-1], *left]
    in_order = [each for each in told if _is_result(each)] == results
    return told if in_order or not any(map(_has_media, results)) else [*turns, *results]


def _has_media(message: ChatMessage) -> bool:
    """Whether it has media. They are sent apart from messages, in the same order: such messages must keep it."""
    return isinstance(message.content, list) and any(part.type != "text" for part in message.content)


def _is_result(message: ChatMessage) -> bool:
    return message.role == "tool"


def with_tools(turns: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns with the tools as JSON text in the system's turn."""
    written = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    first = turns[0] if turns[0]["role"] == "system" else {"role": "system", "content": ""}
    return [{**first, "tools": written}, *turns[first is turns[0] :]]


def template_message(message: ChatMessage, content: Any, answers: AnswerFormat | None = None) -> dict[str, Any]:
    """The message as a turn with this content, for a template of this format. Empty fields are left out."""
    form, thought = (answers.calls, answers.thought) if answers else (None, None)
    calls, thinks = message.tool_calls, message.reasoning
    if calls and form and form.in_content:
        content, calls = _with_text(content, _written(form, calls)), []
    if calls and thought and thought.opening and thinks and isinstance(content, str):
        # Beside calls, such a template reads either the thought or the content, and shows it as a thought.
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
    """The text that the model itself would write to make these calls."""
    found = [(call.name, _parsed(call.arguments)) for call in calls]
    return form.written((name, arguments if isinstance(arguments, dict) else {}) for name, arguments in found)


def _call(call: ToolCall, as_text: bool) -> dict[str, Any]:
    arguments = call.arguments if as_text else _parsed(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    """The arguments as an object, which most templates expect. Text that is no JSON object stays text."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments
