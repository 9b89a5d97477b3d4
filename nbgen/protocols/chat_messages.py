"""The turns of a chat and the options of its template, as OpenAI-style bodies spell them. Knows no route.

Follows OpenAI's API reference for the parts of a turn, and SGLang for those that OpenAI lacks: `audio_url`,
`video_url`, and URLs that are bare base64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_MEDIA, MediaType
from nbgen.messages import ChatMessage, ContentPart, ToolCall
from nbgen.protocols.media import Item, check_media, decode_base64, parse_item

MAX_MESSAGES = 4096
MAX_TEMPLATE_OPTIONS = 32
#: Names under which templates take the switch of whether the model thinks.
SWITCHES = frozenset(("enable_thinking", "thinking"))
#: Template variables that the body sets by other fields.
RESERVED_OPTIONS = {"add_generation_prompt", "continue_final_message", "messages", "tools"}
#: Part types that hold text.
WORDS = ("text", "refusal")


class InputAudio(msgspec.Struct, omit_defaults=True):
    """A sound in base64; its format is detected from its content."""

    data: str
    format: str = ""


class Part(msgspec.Struct, omit_defaults=True):
    """A piece of a message's content: text, an earlier refusal, or a medium under the name of its type."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | dict[str, Any] | None = None
    audio_url: str | dict[str, Any] | None = None
    video_url: str | dict[str, Any] | None = None
    input_audio: InputAudio | None = None

    def __post_init__(self) -> None:
        for name in {*MEDIA_PARTS, "input_audio"} - {self.type}:  # fields of other types are ignored
            setattr(self, name, None)
        if self.type in WORDS and self.words is None:
            raise ValueError(f"content of the type '{self.type}' needs `{self.type}`, a text")

    @property
    def words(self) -> str | None:
        """The part's text; None if it is a medium."""
        return getattr(self, self.type) if self.type in WORDS else None


#: Part types that hold a medium, and the medium's type.
MEDIA_PARTS: dict[str, MediaType] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}


class CalledFunction(msgspec.Struct):
    """A call's function, and the arguments that the model wrote."""

    name: str
    arguments: str | dict[str, Any] = ""


class Call(msgspec.Struct):
    """A tool call in one of the model's turns."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"

    @property
    def arguments(self) -> str:
        """Its arguments as JSON text, whether sent as text or as an object."""
        given = self.function.arguments
        return given if isinstance(given, str) else msgspec.json.encode(given).decode()


class Turn(msgspec.Struct, omit_defaults=True):
    """A message of a chat."""

    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    #: `reasoning_content` under the name of vLLM and OpenRouter.
    reasoning: str | None = None
    tool_calls: list[Call] | None = None
    #: OpenAI's predecessor of `tool_calls`; refused.
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.reasoning_content is None:
            self.reasoning_content = self.reasoning
        self.reasoning = None


class Conversation(NamedTuple):
    """The turns of a chat, and the media of their parts, in order."""

    messages: list[ChatMessage]
    media: list[Item]


def check_count(turns: Sequence[Turn]) -> None:
    """Raise InvalidRequest for none, or too many."""
    if not 0 < len(turns) <= MAX_MESSAGES:
        raise InvalidRequest(f"messages must hold 1 to {MAX_MESSAGES} turns, got {len(turns)}", field="messages")


def conversation(turns: Sequence[Turn]) -> Conversation:
    """The turns of a chat. Raises InvalidRequest for none, too many, or content that no model takes."""
    check_count(turns)
    media: list[Item] = []
    messages = [_message(turn, media) for turn in turns]
    check_media(media, "messages")
    return Conversation(messages, media)


def chat_messages(turns: list[Turn]) -> list[ChatMessage]:
    """As `conversation`, for a route that takes text only."""
    messages, media = conversation(turns)
    if media:
        raise InvalidRequest(f"this route takes no {media[0].type} in messages", field="messages")
    return messages


def template_options(
    options: Mapping[str, Any], field: str = "chat_template_kwargs"
) -> dict[str, bool | int | float | str]:
    """A chat template's own variables, such as `enable_thinking`: plain values, none under a RESERVED_OPTIONS name.

    `field` is the dialect's name for them. Raises InvalidRequest.
    """
    for name, value in options.items():
        if name in RESERVED_OPTIONS or not name.isidentifier() or not isinstance(value, bool | int | float | str):
            raise InvalidRequest(f"{field}.{name:.80} is not an option that a template may be given", field=field)
    if len(options) > MAX_TEMPLATE_OPTIONS:
        raise InvalidRequest(f"{field} has {len(options)} options; at most {MAX_TEMPLATE_OPTIONS}", field=field)
    return dict(options)


def manner(options: Mapping[str, Any] | None, effort: str | None, verbosity: str | None = None) -> dict[str, Any]:
    """The `options`, and the template variables for reasoning effort and verbosity, under the names that models use.

    As with SGLang and vLLM, the effort "none" turns thinking off, and any other turns it on. Either switch in
    `options` overrides that. Otherwise both names are set, since templates read one or the other.
    """
    options = options or {}
    told: dict[str, Any] = {"reasoning_effort": effort, "verbosity": verbosity}
    if effort is not None and SWITCHES.isdisjoint(options):
        told |= dict.fromkeys(SWITCHES, effort != "none")
    return {name: value for name, value in told.items() if value is not None} | dict(options)


def without_files(content: str | list[Part]) -> str | list[Part]:
    """A turn's content with empty parts in place of its media."""
    if isinstance(content, str):
        return content
    return [part if part.words is not None else Part(type=part.type) for part in content]


def part_size(part: Part) -> int:
    """Characters of a part."""
    sound = part.input_audio and part.input_audio.data
    given = [part.text, part.refusal, part.image_url, part.audio_url, part.video_url, sound]
    return sum(len(each["url"] if isinstance(each, dict) else each) for each in given if each)


def part_item(part: Part) -> Item:
    """The medium of a part that is not text. Raises InvalidRequest."""
    if part.type == "input_audio" and part.input_audio is not None:
        return decode_base64(part.input_audio.data, "audio", "input_audio.data")
    if part.type in ("file", "input_file"):
        raise InvalidRequest(f"content of the type {part.type!r} is not read here: send its text", field="messages")
    given = getattr(part, part.type) if part.type in MEDIA_PARTS else None
    if given is None:
        known = ", ".join((*WORDS, "input_audio", *MEDIA_PARTS))
        raise InvalidRequest(
            f"content of the type {part.type!r:.80} needs a member of that name, and must be one of {known}",
            field="messages",
        )
    if isinstance(given, dict) and not isinstance(given.get("url"), str):
        raise InvalidRequest(f"{part.type} needs `url`, a data URL or an address", field=part.type)
    return parse_item(given, MEDIA_PARTS[part.type], part.type)


def _message(turn: Turn, media: list[Item]) -> ChatMessage:
    role = "system" if turn.role == "developer" else turn.role
    if role not in ("system", "user", "assistant", "tool"):
        raise InvalidRequest(f"messages of the role {turn.role!r:.80} are not supported", field="messages")
    if turn.function_call is not None:
        raise InvalidRequest("`function_call` of a message is not supported: give it in `tool_calls`", field="messages")
    content = turn.refusal if turn.content is None and role == "assistant" else turn.content
    alone = role == "assistant" and (turn.tool_calls or turn.reasoning_content is not None)
    if content is None and not alone:
        raise InvalidRequest(f"a message of the role {turn.role!r} has no content", field="messages")
    parts = [Part(type="text", text=content)] if isinstance(content, str) else content or []
    other = next((part.type for part in parts if part.words is None), None)
    if other is None:
        text = "".join(part.words or "" for part in parts)
        return ChatMessage(role=role, content=text, **_more(turn))  # type: ignore[arg-type]
    if role != "user":
        raise InvalidRequest(
            f"a message of the role {role} has text only, not {other[:80]!r}; images and sounds are a user's",
            field="messages",
        )
    return ChatMessage(role="user", content=[_part(part, media) for part in parts])


def _more(turn: Turn) -> dict[str, Any]:
    """What a turn has besides text: the model's reasoning and calls, or the id of the call that a tool answers."""
    if turn.role == "tool":
        return {"tool_call_id": turn.tool_call_id or "", "name": turn.name or ""}
    if turn.role != "assistant":
        return {}
    return {"reasoning": turn.reasoning_content or "", "tool_calls": [_call(call) for call in turn.tool_calls or ()]}


def _call(call: Call) -> ToolCall:
    return ToolCall(id=call.id, name=call.function.name, arguments=call.arguments)


def _part(part: Part, media: list[Item]) -> ContentPart:
    if part.words is not None:
        return ContentPart(type="text", text=part.words)
    if len(media) >= MAX_MEDIA:  # before more of them are decoded in vain
        raise InvalidRequest(f"the messages have more than {MAX_MEDIA} images and sounds", field="messages")
    media.append(part_item(part))
    return ContentPart(type=media[-1].type)
