"""OpenAI's responses: translates their bodies into the call of an equivalent chat.

Follows OpenAI's API reference of `/v1/responses`, with the extra fields that chat completions take here. Does not know
the format of answers (`responses_answer`), and of earlier responses only what `Memory` gives.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from nbgen.errors import InvalidRequest, renamed
from nbgen.protocols import openai
from nbgen.protocols.json_body import parse_object
from nbgen.protocols.openai import Call
from nbgen.protocols.responses_body import OF_CHATS, OWN, Body, Format, parse_body
from nbgen.protocols.responses_items import Item, chat_turns, input_items, json_size, with_own_ids
from nbgen.protocols.responses_tools import chat_tools
from nbgen.tokenizer_messages import TokenizeRequest


class Memory(Protocol):
    """Gives the items of earlier responses and of conversations."""

    def history(self, id: str) -> list[Item]:
        """All items up to the end of this response. Raises InvalidRequest."""

    def conversation(self, id: str) -> Sequence[Item]:
        """All items of this conversation. Raises NotFound."""

    def item(self, id: str) -> Item:
        """Any of these items by its own id. Raises InvalidRequest."""


class ResponseCall(NamedTuple):
    """The call in a body, with the items that it adds and those that it continues."""

    id: str
    body: Body
    call: Call
    #: The items of its own input, and all items that the model reads.
    input: list[Item]
    items: list[Item]
    #: The items of its conversation, which are among `items`.
    said: Sequence[Item] = ()
    #: Bytes as JSON: of each of `items`, and of everything else in the body.
    sizes: Sequence[int] = ()
    size: int = 0


def parse_response(raw: bytes, memory: Memory) -> ResponseCall:
    """The call in a body of `/v1/responses`. Raises InvalidRequest."""
    fields = {name: value for name, value in parse_object(raw).items() if value is not None}
    body = parse_body(fields)
    given = with_own_ids([resolved(item, memory) for item in input_items([] if body.input is None else body.input)])
    said = memory.conversation(body.conversation_id) if body.conversation_id else ()
    items = [*(memory.history(body.previous_response_id) if body.previous_response_id else said), *given]
    id = f"resp_{uuid.uuid4().hex}"
    sizes = [json_size([item]) for item in items]
    besides = len(msgspec.json.encode(msgspec.structs.replace(body, input="")))
    return ResponseCall(id, body, _call(fields, body, items, id), given, items, said, sizes, besides)


def parse_count(raw: bytes, memory: Memory) -> TokenizeRequest:
    """The prompt of such a body, to be tokenized for counting. Raises InvalidRequest."""
    call = parse_response(raw, memory).call
    if call.requests[0].drop_oldest:
        raise InvalidRequest("the whole input is counted: leave truncation out", field="truncation")
    return to_be_counted(call, "input")


def to_be_counted(call: Call, field: str) -> TokenizeRequest:
    """The prompt of a chat's call, to be tokenized for counting. Raises InvalidRequest, naming `field`, for media."""
    (request,) = call.requests
    if call.media[0]:
        raise InvalidRequest(f"this route takes no {call.media[0][0].type}: it counts text", field=field)
    return TokenizeRequest(
        rid=request.rid,
        messages=request.messages,
        tools=request.tools.tools if request.tools else [],
        template_options=request.template_options,
        add_generation_prompt=not request.continue_final,
        continue_final=request.continue_final,
    )


def resolved(item: Item, memory: Memory) -> Item:
    """The item, or the one that it refers to. Raises InvalidRequest."""
    return memory.item(str(item.get("id"))) if item["type"] == "item_reference" else item


def _call(fields: dict[str, Any], body: Body, items: Sequence[Item], id: str) -> Call:
    """The body as a chat's call; a refusal names the field as the caller wrote it."""
    tools, choice = chat_tools(body.tools or (), body.tool_choice)
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    chat: dict[str, Any] = {
        "rid": id,
        **{name: value for name, value in fields.items() if name not in OWN},
        "messages": system + chat_turns(items),
        "max_completion_tokens": body.max_output_tokens,
        "tools": tools,
        "tool_choice": choice,
        "response_format": _response_format(body.text.format),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "verbosity": body.text.verbosity,
        "logprobs": body.logprobs,
    }
    try:
        call = openai.chat_call(chat)
        requests = [msgspec.structs.replace(each, drop_oldest=body.truncation == "auto") for each in call.requests]
        names = {own: OF_CHATS.get(name, name) for own, name in call.names.items()}
        return call._replace(requests=requests, names=names)
    except InvalidRequest as error:
        field = (error.field or "").partition("[")[0] or None  # without a turn's index: an item's is another
        raise renamed(InvalidRequest(error.message, field=field, code=error.code), OF_CHATS) from None


def _response_format(format: Format) -> dict[str, Any]:
    if format.type != "json_schema":
        return {"type": format.type, "schema": format.schema}
    if format.schema is None:
        raise InvalidRequest("text.format of the type json_schema needs a schema", field="text.format")
    wanted = {"schema": format.schema, "name": format.name, "strict": format.strict}
    return {"type": "json_schema", "json_schema": wanted}
