"""OpenAI's conversations: lists of items, to which each response appends its input and output.

Kept in memory, the least recently used forgotten first. Knows no HTTP.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nbgen.errors import InvalidRequest, NotFound
from nbgen.protocols.responses_items import Item, in_parts, json_size, with_own_ids
from nbgen.server.item_index import ItemIndex

if TYPE_CHECKING:
    from nbgen.server.responses import Response
    from nbgen.server.runs import Run

KEEP_CONVERSATIONS = 1024
#: Limit of all conversations' items as JSON. A single conversation this large takes no more items.
KEEP_BYTES = 64 * 2**20
#: Status of responses whose items are added to their conversation.
SAID = ("completed", "incomplete")


class Conversation:
    """One conversation. `items` is replaced, never changed in place; `size` is that of their JSON, in bytes."""

    def __init__(self, metadata: Mapping[str, str]) -> None:
        self.id = f"conv_{uuid.uuid4().hex}"
        self.created = time.time()
        self.metadata = metadata
        self.items: tuple[Item, ...] = ()
        self.size = 0
        #: Whether a response is being made whose items will be added.
        self.busy = False

    def append(self, items: Sequence[Item]) -> list[Item]:
        """Append items; returns them as kept, each with an id of its own."""
        added = with_own_ids(items, (item["id"] for item in self.items))
        self.items = (*self.items, *added)
        self.size += json_size(added)
        return added

    def drop(self, item: Item) -> None:
        """Remove an item."""
        self.items = tuple(each for each in self.items if each is not item)
        self.size -= json_size([item])

    def item(self, id: str) -> Item:
        """One of its items. Raises NotFound."""
        for item in self.items:
            if item["id"] == id:
                return item
        raise NotFound(f"the conversation {self.id} has no item {id[:80]!r}, or no more", field="item_id")


class Conversations:
    """All conversations of this server, by id."""

    def __init__(self) -> None:
        self._kept: dict[str, Conversation] = {}
        self._items = ItemIndex()

    @property
    def size(self) -> int:
        """The size of all conversations, in bytes."""
        return sum(each.size for each in self._kept.values())

    def create(self, metadata: Mapping[str, str], items: Sequence[Item]) -> Conversation:
        """A new conversation that begins with these items."""
        conversation = Conversation(metadata)
        self._kept[conversation.id] = conversation
        self._append(conversation, items)
        return conversation

    def get(self, id: str) -> Conversation:
        """The conversation of this id. Raises NotFound."""
        if (found := self._kept.get(id)) is None:
            raise NotFound(f"there is no conversation {id[:80]!r} here, or no more", field="conversation")
        return found

    def delete(self, id: str) -> None:
        """Forget it and its items. Raises NotFound."""
        self._pop(self.get(id))

    def add(self, id: str, items: Sequence[Item]) -> list[Item]:
        """Append items to a conversation; returns them as kept. Raises NotFound and InvalidRequest."""
        conversation = self._free(id)
        _check_room(conversation, items, "items")
        return self._append(conversation, items)

    def remove(self, id: str, item_id: str) -> Conversation:
        """Remove an item; returns its conversation. Raises NotFound and InvalidRequest."""
        conversation, item = self._free(id), self.get(id).item(item_id)
        conversation.drop(item)
        self._items.remove(id, [item])
        self._used(conversation)
        return conversation

    def claim(self, id: str, items: Sequence[Item], asked: Sequence[Item]) -> Conversation:
        """The conversation, if it still has exactly these `items`, is not busy, and has room for the items `asked`.

        Raises NotFound and InvalidRequest.
        """
        conversation = self._free(id)
        if conversation.items is not items:
            raise _busy(id)
        _check_room(conversation, [in_parts(item) for item in asked], "input")
        return conversation

    def follow(self, conversation: Conversation, response: Response, run: Run) -> None:
        """When the response ends, add its input and output to the conversation."""
        conversation.busy = True
        run.end_watchers.add(lambda: self._settle(conversation, response))
        self._settle(conversation, response)

    def find(self, id: str) -> Item | None:
        """An item of any of them by its id."""
        return self._items.find(id)

    def _free(self, id: str) -> Conversation:
        if (conversation := self.get(id)).busy:
            raise _busy(id)
        return conversation

    def _settle(self, conversation: Conversation, response: Response) -> None:
        if not conversation.busy or not response.settle():
            return
        conversation.busy = False
        body = response.body()
        if body["status"] in SAID:
            self._append(conversation, [*map(in_parts, response.input), *body["output"]])

    def _append(self, conversation: Conversation, items: Sequence[Item]) -> list[Item]:
        added = conversation.append(items)
        if conversation.id in self._kept:
            self._items.add(conversation.id, added)
        self._used(conversation)
        return added

    def _used(self, conversation: Conversation) -> None:
        """Mark the conversation as used last; forget the oldest beyond the limits."""
        if self._kept.pop(conversation.id, None) is not None:
            self._kept[conversation.id] = conversation
        size = self.size
        for each in list(self._kept.values()):
            if len(self._kept) <= KEEP_CONVERSATIONS and size <= KEEP_BYTES:
                return
            if each is not conversation and not each.busy:
                size -= self._pop(each).size

    def _pop(self, conversation: Conversation) -> Conversation:
        self._items.remove(conversation.id, conversation.items)
        return self._kept.pop(conversation.id)


def _check_room(conversation: Conversation, items: Sequence[Item], field: str) -> None:
    added = json_size(items)
    if conversation.size + added > KEEP_BYTES:
        raise InvalidRequest(
            f"the conversation has {conversation.size} bytes, and {added} came; at most {KEEP_BYTES}: delete items of "
            "it, or begin another",
            field=field,
        )


def _busy(id: str) -> InvalidRequest:
    return InvalidRequest(
        f"a response is being made in the conversation {id[:80]!r}: try again when it has ended", field="conversation"
    )
