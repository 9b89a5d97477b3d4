"""OpenAI's conversations: bodies with items and metadata, and the conversation object.

Follows OpenAI's API reference of `/v1/conversations`. Does not know where they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nbgen.errors import InvalidRequest, renamed
from nbgen.protocols import openai
from nbgen.protocols.json_body import convert, parse_object
from nbgen.protocols.responses import Memory, resolved
from nbgen.protocols.responses_body import check_metadata
from nbgen.protocols.responses_items import Item, chat_turns, in_parts, input_items

MAX_ITEMS = 20


class CreateBody(msgspec.Struct, kw_only=True):
    """The body that creates a conversation, optionally with items and metadata."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class UpdateBody(msgspec.Struct, kw_only=True):
    """The body that replaces a conversation's metadata."""

    metadata: dict[str, str] | None


class ItemsBody(msgspec.Struct, kw_only=True):
    """The body that appends items to a conversation."""

    items: list[Item]


def parse_create(raw: bytes, memory: Memory) -> tuple[dict[str, str], list[Item]]:
    """The metadata and items that a conversation is created with. Raises InvalidRequest."""
    body = convert(parse_object(raw), CreateBody)
    return _metadata(body.metadata), _items(body.items or [], memory)


def parse_update(raw: bytes) -> dict[str, str]:
    """The metadata that a conversation gets. Raises InvalidRequest."""
    return _metadata(convert(parse_object(raw), UpdateBody).metadata)


def parse_items(raw: bytes, memory: Memory) -> list[Item]:
    """The items that a conversation gets. Raises InvalidRequest."""
    body = convert(parse_object(raw), ItemsBody)
    if not body.items:
        raise InvalidRequest(f"items must hold 1 to {MAX_ITEMS} items", field="items")
    return _items(body.items, memory)


def conversation_body(id: str, created: float, metadata: Mapping[str, str]) -> bytes:
    """A conversation without its items."""
    about = {"id": id, "object": "conversation", "created_at": int(created), "metadata": metadata}
    return msgspec.json.encode(about)


def _metadata(given: dict[str, str] | None) -> dict[str, str]:
    metadata = given or {}
    check_metadata(metadata)
    return metadata


def _items(given: Sequence[Item], memory: Memory) -> list[Item]:
    """The items, checked to be such as a response can be made from."""
    if len(given) > MAX_ITEMS:
        raise InvalidRequest(f"items has {len(given)} items; at most {MAX_ITEMS} at a time", field="items")
    try:
        items = [in_parts(resolved(item, memory)) for item in input_items(given, "items")]
        if items:
            openai.chat_call({"messages": chat_turns(items)})
    except InvalidRequest as error:
        raise InvalidRequest(renamed(error, {"messages": "items"}).message, field="items") from None
    return items
