"""OpenAI's routes that create, label and delete conversations, and list, add and remove their items."""

from __future__ import annotations

from functools import partial

import msgspec

from nbgen.protocols import conversations
from nbgen.protocols.conversations import conversation_body
from nbgen.protocols.responses_answer import item_page
from nbgen.protocols.responses_query import Page, check_included, parse_query
from nbgen.server.base_handler import MEDIA_BODY, SMALL_BODY
from nbgen.server.conversations import Conversation, Conversations
from nbgen.server.openai_handlers import OpenaiHandler
from nbgen.server.responses_handlers import ID, KeptHandler


class KnowingHandler(OpenaiHandler, KeptHandler):
    """Knows the conversations of this server."""

    body_limit = MEDIA_BODY

    @property
    def conversations(self) -> Conversations:
        return self.kept.conversations

    def tell(self, conversation: Conversation) -> None:
        """Answer with the conversation, without its items."""
        self.finish(conversation_body(conversation.id, conversation.created, conversation.metadata))


class ConversationsHandler(KnowingHandler):
    """Creates a conversation, which may begin with items."""

    async def post(self) -> None:
        metadata, items = await self.parsed(partial(conversations.parse_create, memory=self.kept))
        self.tell(self.conversations.create(metadata, items))


class ConversationHandler(KnowingHandler):
    """One conversation, without its items."""

    body_limit = SMALL_BODY

    async def get(self, id: str) -> None:
        self.tell(self.conversations.get(id))

    head = get

    async def post(self, id: str) -> None:
        conversation = self.conversations.get(id)
        conversation.metadata = conversations.parse_update(self.body)
        self.tell(conversation)

    async def delete(self, id: str) -> None:
        self.conversations.delete(id)
        self.finish(msgspec.json.encode({"id": id, "object": "conversation.deleted", "deleted": True}))


class ItemsHandler(KnowingHandler):
    """Lists a conversation's items page by page, and appends items."""

    async def get(self, id: str) -> None:
        page = parse_query(self.request.query_arguments, Page)
        self.finish(item_page(self.conversations.get(id).items, page))

    head = get

    async def post(self, id: str) -> None:
        check_included(self.request.query_arguments)
        self.conversations.get(id)
        items = await self.parsed(partial(conversations.parse_items, memory=self.kept))
        added = self.conversations.add(id, items)
        self.finish(item_page(added, Page(limit=conversations.MAX_ITEMS, order="asc")))


class ItemHandler(KnowingHandler):
    """One item of a conversation."""

    async def get(self, id: str, item_id: str) -> None:
        check_included(self.request.query_arguments)
        self.finish(msgspec.json.encode(self.conversations.get(id).item(item_id)))

    head = get

    async def delete(self, id: str, item_id: str) -> None:
        self.tell(self.conversations.remove(id, item_id))


HANDLERS = [
    (r"v1/conversations", ConversationsHandler),
    (rf"v1/conversations/{ID}", ConversationHandler),
    (rf"v1/conversations/{ID}/items", ItemsHandler),
    (rf"v1/conversations/{ID}/items/{ID}", ItemHandler),
]
