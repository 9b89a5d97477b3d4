"""The messages of Anthropic's bodies, as the turns of a chat. Knows no field around them.

Follows Anthropic's API reference of `/v1/messages`, `messages`. Content that chat templates have no place for is moved:
instructions in mid-chat go to the end of the turn before them, images of a tool result into a user's turn after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from nbgen.errors import InvalidRequest

Turn = dict[str, Any]
#: Start of a block in Claude Code's system prompt that is for billing and differs in each request; it is dropped.
BILLING = "x-anthropic-billing-header"


class Base64(msgspec.Struct, tag_field="type", tag="base64"):
    """A file in the body itself."""

    media_type: str
    data: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class Address(msgspec.Struct, tag_field="type", tag="url"):
    """The URL of a file."""

    url: str


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """Text of any role."""

    text: str


class Image(msgspec.Struct, tag_field="type", tag="image"):
    """An image from the user, or in a tool's result."""

    source: Base64 | Address


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's thoughts. The signature is not checked."""

    thinking: str


class RedactedThinking(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Encrypted thoughts that only Anthropic's servers can read; they are skipped."""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call that the model wanted made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResult(msgspec.Struct, tag_field="type", tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[Text | Image] | None = None
    is_error: bool | None = None


Block = Text | Image | Thinking | RedactedThinking | ToolUse | ToolResult
#: The blocks that each role's content may have.
CONTENTS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "user": (Text, Image, ToolResult),
    "assistant": (Text, Thinking, RedactedThinking, ToolUse),
    "system": (Text,),
}


class Message(msgspec.Struct):
    """A message of the user or the model, or instructions between them."""

    role: Literal["user", "assistant", "system"]
    content: str | Sequence[Block]


def chat_turns(system: str | Sequence[Text], messages: Sequence[Message]) -> list[Turn]:
    """The turns of a chat with these instructions. A role's consecutive messages become one turn, empty ones none.

    Raises InvalidRequest for a block that its role may not have.
    """
    turns: list[Turn] = []
    for message in [Message("system", system), *messages] if system else messages:
        blocks = [Text(message.content)] if isinstance(message.content, str) else message.content
        _check(message.role, blocks)
        _ADD[message.role](turns, blocks)
    return [turn | {"content": _joined(turn["content"], turn["role"])} for turn in turns]


def _check(role: str, blocks: Sequence[Block]) -> None:
    other = next((block for block in blocks if not isinstance(block, CONTENTS[role])), None)
    if other is not None:
        known = " and ".join(str(kind.__struct_config__.tag) for kind in CONTENTS[role])
        kind = other.__struct_config__.tag
        raise InvalidRequest(f"a message of the role {role} has no {kind}: its content is {known}", field="messages")


def _instruct(turns: list[Turn], blocks: Sequence[Block]) -> None:
    told = [block for block in blocks if isinstance(block, Text) and not block.text.startswith(BILLING)]
    last = turns[-1]["role"] if turns else "system"
    if told:  # few templates take a system turn in mid-chat
        _turn(turns, "user" if last == "assistant" else last)["content"] += map(_part, told)


def _ask(turns: list[Turn], blocks: Sequence[Block]) -> None:
    """Add a user's message: tool results first, then all other blocks."""
    results = [block for block in blocks if isinstance(block, ToolResult)]
    said = [block for block in blocks if isinstance(block, Text | Image)]
    shown: list[Text | Image] = []
    for result in results:
        inner = [Text(result.content)] if isinstance(result.content, str) else result.content or []
        texts = [Text("Error:")] * bool(result.is_error) + [block for block in inner if isinstance(block, Text)]
        shown += [block for block in inner if isinstance(block, Image)]
        turns.append({"role": "tool", "tool_call_id": result.tool_use_id, "content": [*map(_part, texts)]})
    if said or shown or not results:
        _turn(turns, "user")["content"] += map(_part, [*shown, *said])


def _say(turns: list[Turn], blocks: Sequence[Block]) -> None:
    if all(block == Text("") or isinstance(block, RedactedThinking) for block in blocks):
        return
    turn = _turn(turns, "assistant")
    for block in blocks:
        match block:
            case Text():
                turn["content"].append(_part(block))
            case Thinking(thinking):
                turn["reasoning_content"] = turn.get("reasoning_content", "") + thinking
            case ToolUse(id, name, input):
                function = {"name": name, "arguments": msgspec.json.encode(input).decode()}
                turn.setdefault("tool_calls", []).append({"id": id, "type": "function", "function": function})


_ADD: dict[str, Callable[[list[Turn], Sequence[Block]], None]] = {"user": _ask, "assistant": _say, "system": _instruct}


def _turn(turns: list[Turn], role: str) -> Turn:
    """The last turn if it is this role's, or a new one."""
    if not turns or turns[-1]["role"] != role:
        turns.append({"role": role, "content": []})
    return turns[-1]


def _part(block: Text | Image) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "image_url", "image_url": {"url": block.source.url}}


def _joined(parts: list[dict[str, Any]], role: str) -> str | list[dict[str, Any]]:
    """Content of text alone as one string: the model's blocks joined as they are, those of others by line breaks."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return ("" if role == "assistant" else "\n").join(part["text"] for part in parts)
