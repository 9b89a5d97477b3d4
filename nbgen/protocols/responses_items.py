"""The items of OpenAI's responses: checks input items and converts them to the turns of a chat.

Follows OpenAI's API reference of `/v1/responses`, `input`. Items stay JSON as they came, since callers get them back.
Does not know the model or where items are kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from nbgen.errors import InvalidRequest, place_of
from nbgen.protocols.responses_tools import full_name

Item = dict[str, Any]
#: Types of items and the beginnings of their ids.
ID_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_"}
#: Types of items that may have parts, and the fields of those.
_IN_PARTS = {"message": "content", "reasoning": "content", "function_call_output": "output"}
#: Types of a message's parts, and their types in chat messages.
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


class AnyItem(msgspec.Struct, kw_only=True, tag_field="type"):
    """The field that every item may have."""

    id: str = ""


class Message(AnyItem, tag="message"):
    """A message of a user, the model or the system: text, or parts."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class Text(msgspec.Struct):
    """A piece of reasoning."""

    text: str


class Reasoning(AnyItem, tag="reasoning"):
    """The model's reasoning, whole or as a summary."""

    summary: list[Text] = []
    content: list[Text] | None = None


class FunctionCall(AnyItem, tag="function_call"):
    """A call that the model wants made. `arguments` is JSON."""

    call_id: str
    name: str
    arguments: str
    namespace: str = ""


class FunctionCallOutput(AnyItem, tag="function_call_output"):
    """The result of a call: text, or parts."""

    output: str | list[dict[str, Any]]
    call_id: str = ""
    name: str = ""


_Known = Message | Reasoning | FunctionCall | FunctionCallOutput


def input_items(given: str | Sequence[Item], field: str = "input") -> list[Item]:
    """The items of a body's `input` or other `field`, each with its type and an id. Raises InvalidRequest."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [_item(item, field, place) for place, item in enumerate(given)]


def with_own_ids(items: Sequence[Item], taken: Iterable[str] = ()) -> list[Item]:
    """The items, each with an id of its own: a new one where another item has it, or one of those `taken`."""
    ids, found = {"", *taken}, []
    for item in items:
        own = item | {"id": _new_id(item["type"])} if item["id"] in ids else item
        ids.add(own["id"])
        found.append(own)
    return found


def json_size(items: Sequence[Item]) -> int:
    """Bytes of the items as JSON."""
    return sum(len(msgspec.json.encode(item)) for item in items)


def in_parts(item: Item) -> Item:
    """The item as OpenAI returns it: a message's text becomes a part, and parts get the fields that clients expect."""
    field = _IN_PARTS.get(item["type"], "")
    parts = item.get(field)
    if isinstance(parts, str) and item["type"] == "message":
        parts = [{"type": "output_text" if item["role"] == "assistant" else "input_text", "text": parts}]
    return item | {field: [_with_defaults(part) for part in parts]} if isinstance(parts, list) else item


def chat_turns(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as a chat's messages: consecutive text, reasoning and calls of the model become one turn.

    Chat templates have no place for images in tool results: these go into a user's turn after consecutive results.
    """
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    shown: dict[str, Any] = {}
    for item in items:
        match msgspec.convert(item, _Known):
            case Message() as message:
                _say(turns, message)
            case Reasoning(summary, content):
                _own_turn(turns, "reasoning_content", "content", "tool_calls")["reasoning_content"] = "".join(
                    each.text for each in content or summary
                )
            case FunctionCall(call_id, name, arguments, namespace):
                name = names[call_id] = full_name(name, namespace)
                called = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                _own_turn(turns).setdefault("tool_calls", []).append(called)
            case FunctionCallOutput(output, call_id, name):
                result = {"role": "tool", "tool_call_id": call_id, "name": name or names.get(call_id, "")}
                left, images = _without_images(_content(output))
                shown = turns.pop() if turns and turns[-1] is shown else {"role": "user", "content": []}
                turns.append(result | {"content": left})
                shown["content"] += images
                turns += [shown] if shown["content"] else []
    return turns


def _item(item: Item, field: str, place: int) -> Item:
    bare = "item_reference" if "id" in item and item.keys() <= {"id", "type"} else None
    kind = item.get("type") or ("message" if "role" in item else bare)
    if kind == "item_reference":
        return item | {"type": kind}
    if not isinstance(kind, str) or kind not in ID_PREFIXES:
        known = ", ".join([*ID_PREFIXES, "item_reference"])
        raise InvalidRequest(f"{field}[{place}] has the type {kind!r:.80}; there are {known}", field=field)
    given = {name: value for name, value in item.items() if value is not None}
    found = {"id": _new_id(kind), "type": kind, "status": "completed", **given}
    try:
        msgspec.convert(found, _Known)
    except msgspec.ValidationError as error:
        what, inside = place_of(str(error))
        raise InvalidRequest(f"{field}[{place}]{inside and f'.{inside}'}: {what}", field=field) from None
    return found


def _new_id(kind: str) -> str:
    return ID_PREFIXES[kind] + uuid.uuid4().hex


def _say(turns: list[dict[str, Any]], message: Message) -> None:
    if message.role == "assistant":
        _own_turn(turns, "content", "tool_calls")["content"] = _content(message.content)
    else:
        turns.append({"role": message.role, "content": _content(message.content)})


def _with_defaults(part: dict[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_image":
            return part | {"detail": part.get("detail") or "auto"}
        case "output_text":
            return {"annotations": [], **part}
    return part


def _own_turn(turns: list[dict[str, Any]], *unless: str) -> dict[str, Any]:
    """The last turn if it is the model's and has none of the fields in `unless`; otherwise a new turn of the model."""
    if not turns or turns[-1]["role"] != "assistant" or any(name in turns[-1] for name in unless):
        turns.append({"role": "assistant"})
    return turns[-1]


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _without_images(content: str | list[dict[str, Any]]) -> tuple[str | list[dict[str, Any]], list[dict[str, Any]]]:
    """The content without images, and the images."""
    if isinstance(content, str):
        return content, []
    images = [part for part in content if part.get("type") == "image_url"]
    return [part for part in content if part.get("type") != "image_url"], images


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """A part in the form of chat messages. A part of an unknown type is unchanged: the chat's parser refuses it."""
    match part:
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail") or "auto"}}
        case {"type": "input_image" | "input_file", "file_id": str()}:
            raise InvalidRequest("there are no uploaded files here: send an image as its URL", field="input")
        case {"type": "input_image"}:
            raise InvalidRequest("content of the type 'input_image' needs `image_url`, text", field="input")
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "refusal", "refusal": text}
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return {"type": _TEXTS[kind], _TEXTS[kind]: text}
        case {"type": str(kind)} if kind in _TEXTS:
            raise InvalidRequest(f"content of the type {kind!r} needs `text`, a text", field="input")
    return part
