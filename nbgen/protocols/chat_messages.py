"""The turns of a chat and the options of its template, as OpenAI-style bodies spell them. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage

MAX_MESSAGES = 4096
MAX_TEMPLATE_OPTIONS = 32
#: Variables that a chat template gets from us, or that would change how it is rendered.
RESERVED_OPTIONS = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "documents",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}


class Part(msgspec.Struct):
    """A piece of a message's content."""

    type: str
    text: str = ""


class Turn(msgspec.Struct):
    """A message of a chat."""

    role: str
    content: str | list[Part] | None = None


def chat_messages(turns: list[Turn]) -> list[ChatMessage]:
    """The turns of a chat. Raises InvalidRequest for none, too many, or what no text model takes."""
    if not 0 < len(turns) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages must hold 1 to {MAX_MESSAGES} turns, got {len(turns)}", field="messages")
    return [_message(turn) for turn in turns]


def template_options(options: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """A chat template's own variables, as `enable_thinking`: plain values that shadow nothing of ours."""
    for name, value in options.items():
        if name in RESERVED_OPTIONS or not name.isidentifier() or not isinstance(value, bool | int | float | str):
            raise InvalidRequest(
                f"chat_template_kwargs.{name:.80} is not an option that a template may be given",
                field="chat_template_kwargs",
            )
    if len(options) > MAX_TEMPLATE_OPTIONS:
        raise InvalidRequest(
            f"chat_template_kwargs has {len(options)} options; at most {MAX_TEMPLATE_OPTIONS}",
            field="chat_template_kwargs",
        )
    return dict(options)


def _message(turn: Turn) -> ChatMessage:
    role = "system" if turn.role == "developer" else turn.role
    if role not in ("system", "user", "assistant"):
        raise InvalidRequest(f"messages of the role {turn.role!r} are not supported yet", field="messages")
    if turn.content is None:
        raise InvalidRequest(f"a message of the role {turn.role!r} has no content", field="messages")
    if isinstance(turn.content, str):
        return ChatMessage(role=role, content=turn.content)  # type: ignore[arg-type]
    other = next((part.type for part in turn.content if part.type != "text"), None)
    if other is not None:
        raise InvalidRequest(f"content of the type {other!r} is not supported yet", field="messages")
    return ChatMessage(role=role, content="".join(part.text for part in turn.content))  # type: ignore[arg-type]
