"""OpenAI's responses: from their bodies to the call of a chat, which says the same in other words.

Follows OpenAI's API reference of `/v1/responses`, with the extra fields that chat completions take here. Knows nothing
of how answers look (`responses_answer`), and of earlier responses only what `Memory` tells.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import TokenizeRequest
from nbgen.protocols import openai
from nbgen.protocols.json_body import convert, parse_object, refuse_inside, refuse_unsupported
from nbgen.protocols.openai import Call
from nbgen.protocols.responses_items import Item, chat_turns, input_items

LOGPROBS = "message.output_text.logprobs"
#: What may be included: log-probabilities, what is always there, and what comes of tools that are not here.
INCLUDABLE = {
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.action.sources",
    "web_search_call.results",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
}
MAX_METADATA = 16
MAX_METADATA_NAME = 64
MAX_METADATA_TEXT = 512
#: Known fields that are not served, with the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "prompt": (None,),
    "context_management": (None, []),
    "moderation": (None,),
    "access_programs": (None, {}),
    "image": (None, {}),
    "personality": (None,),
    "n": (None, 1),
}
UNSUPPORTED_REASONING: dict[str, tuple[Any, ...]] = {
    "summary": (None, "auto"),
    "generate_summary": (None, "auto"),
    "context": (None, "auto", "all_turns"),
    "mode": (None, "standard"),
}
UNSUPPORTED_IN_TOOLS: dict[str, tuple[Any, ...]] = {
    "async": (None, False),
    "defer_loading": (None, False),
    "allowed_callers": (None, ["direct"]),
    "output_schema": (None, {}),
}
#: Fields of a chat's body, and what stands for them here.
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}

Q = TypeVar("Q")


class FunctionTool(msgspec.Struct, omit_defaults=True):
    """A function, which is the only kind of tool here: nothing runs on the server."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Format(msgspec.Struct):
    """What the text must be; of the type json_schema with a schema beside its name."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    format: Format = msgspec.field(default_factory=Format)
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(msgspec.Struct):
    effort: str | None = None


class Reference(msgspec.Struct):
    """A conversation by its id."""

    id: str


class Body(msgspec.Struct, kw_only=True):
    """The fields that are not a chat's, or mean something else there."""

    input: str | list[Item]
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Reference | None = None
    max_output_tokens: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions = msgspec.field(default_factory=TextOptions)
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    #: "auto" leaves out the oldest turns, if the context does not hold them all.
    truncation: Literal["auto", "disabled"] = "disabled"
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1)] | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None

    @property
    def conversation_id(self) -> str:
        """That of the conversation which it is part of; "" where it is of none."""
        given = self.conversation
        return given.id if isinstance(given, Reference) else given or ""

    @property
    def logprobs(self) -> bool:
        """Whether the text comes with its log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def kept(self) -> bool:
        return self.store is not False


class Page(msgspec.Struct, kw_only=True):
    """Which items of a list are wanted: so many after the one of that id."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str = ""


class Again(msgspec.Struct, kw_only=True):
    """How a response is to be told again: as it is, or as the events after the one of that number."""

    stream: bool = False
    starting_after: int = -1
    include_obfuscation: bool = False


#: Fields that are not handed on as they are.
OWN = {*Body.__struct_fields__, "stream_options"} - {
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_logprobs",
    "parallel_tool_calls",
}


class Memory(Protocol):
    """What is known of earlier responses, and of conversations."""

    def history(self, id: str) -> list[Item]:
        """All items up to the end of this response. Raises InvalidRequest."""

    def conversation(self, id: str) -> Sequence[Item]:
        """All items of this conversation. Raises NotFound."""

    def item(self, id: str) -> Item:
        """One of all these by its own id. Raises InvalidRequest."""


class Asked(NamedTuple):
    """What one call asks for."""

    id: str
    body: Body
    call: Call
    #: The items of its own input, and all that the model reads.
    input: list[Item]
    items: list[Item]
    #: Those of its conversation among them.
    said: Sequence[Item] = ()


def parse_response(raw: bytes, memory: Memory) -> Asked:
    """The call in a body of `/v1/responses`. Raises InvalidRequest."""
    fields = {name: value for name, value in parse_object(raw).items() if value is not None}
    _refuse_unsupported(fields)
    body = convert(fields, Body)
    _check(body)
    given = [resolved(item, memory) for item in input_items(body.input)]
    said = memory.conversation(body.conversation_id) if body.conversation_id else ()
    items = [*(memory.history(body.previous_response_id) if body.previous_response_id else said), *given]
    id = f"resp_{uuid.uuid4().hex}"
    return Asked(id, body, _call(fields, body, items, id), given, items, said)


def parse_count(raw: bytes, memory: Memory) -> TokenizeRequest:
    """The prompt that such a body makes, to be counted. Raises InvalidRequest."""
    (request,) = (call := parse_response(raw, memory).call).requests
    if request.drop_oldest:
        raise InvalidRequest("the whole input is counted: leave truncation out", field="truncation")
    if call.media[0]:
        raise InvalidRequest(f"this route takes no {call.media[0][0].type}: it counts text", field="input")
    return TokenizeRequest(
        rid=request.rid,
        messages=request.messages,
        tools=request.tools.tools if request.tools else [],
        template_options=request.template_options,
    )


def parse_query(arguments: Mapping[str, list[bytes]], kind: type[Q]) -> Q:
    """The options in a query; those that are not known are left out. Raises InvalidRequest."""
    check_included(arguments)
    given = {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"in the query: {error}") from None


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields, UNSUPPORTED)
    refuse_inside(fields, "stream_options", openai.UNSUPPORTED_STREAM_OPTIONS)
    refuse_inside(fields, "reasoning", UNSUPPORTED_REASONING)
    tools = fields.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        refuse_inside({f"tools[{place}]": tool}, f"tools[{place}]", UNSUPPORTED_IN_TOOLS)


def _check(body: Body) -> None:
    _check_names(body.include or ())
    if body.background and not body.kept:
        raise InvalidRequest("background needs store: what nobody waits for is fetched later", field="background")
    if body.conversation_id and body.previous_response_id:
        raise InvalidRequest(
            "conversation and previous_response_id are mutually exclusive: give one of them", field="conversation"
        )
    check_metadata(body.metadata or {})


def check_included(arguments: Mapping[str, list[bytes]]) -> None:
    """Raise InvalidRequest for what a query cannot include."""
    given = [*arguments.get("include", ()), *arguments.get("include[]", ())]
    _check_names([name.decode("utf-8", "replace") for name in given])


def _check_names(included: Sequence[str]) -> None:
    if unknown := [name for name in included if name not in INCLUDABLE]:
        raise InvalidRequest(
            f"include has {unknown[0]!r:.80}; there are {', '.join(sorted(INCLUDABLE))}", field="include"
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidRequest for more labels than there may be, or longer ones."""
    longest = max(map(len, metadata), default=0), max(map(len, metadata.values()), default=0)
    if len(metadata) > MAX_METADATA or longest[0] > MAX_METADATA_NAME or longest[1] > MAX_METADATA_TEXT:
        raise InvalidRequest(
            f"metadata has at most {MAX_METADATA} entries with names of {MAX_METADATA_NAME} and texts of "
            f"{MAX_METADATA_TEXT} characters",
            field="metadata",
        )


def resolved(item: Item, memory: Memory) -> Item:
    """The item, or the one that it refers to. Raises InvalidRequest."""
    return memory.item(str(item.get("id"))) if item["type"] == "item_reference" else item


def _call(fields: dict[str, Any], body: Body, items: Sequence[Item], id: str) -> Call:
    """The same as a chat's call; a refusal names the field as the caller wrote it."""
    tools, choice = _tools(body)
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
        "logprobs": body.logprobs,
    }
    if body.text.verbosity:
        chat["chat_template_kwargs"] = {"verbosity": body.text.verbosity} | (fields.get("chat_template_kwargs") or {})
    try:
        call = openai.chat_call(chat)
        requests = [msgspec.structs.replace(each, drop_oldest=body.truncation == "auto") for each in call.requests]
        return call._replace(requests=requests)
    except InvalidRequest as error:
        words, field = error.message, (error.field or "").partition("[")[0] or None  # turns are no items: other places
        for theirs, ours in _NAMES.items():
            words, field = words.replace(theirs, ours), ours if field == theirs else field
        raise InvalidRequest(words, field=field) from None


def _tools(body: Body) -> tuple[list[dict[str, Any]], Any]:
    """Tools and choice as chats have them; of `allowed_tools` the model sees those alone."""
    tools, choice = body.tools or [], body.tool_choice
    match choice:
        case {"type": "function", "name": name}:
            choice = {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = [tool.get("name") for tool in allowed if isinstance(tool, dict)]
            tools, choice = [tool for tool in tools if tool.name in names], mode
        case dict():
            raise InvalidRequest(
                f"tool_choice of the type {choice.get('type')!r:.80} is not supported: there are function, with a "
                "name, and allowed_tools, with a mode and tools",
                field="tool_choice",
            )
    return [{"type": "function", "function": _function(tool)} for tool in tools], choice


def _function(tool: FunctionTool) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(tool).items() if name != "type"}


def _response_format(format: Format) -> dict[str, Any]:
    if format.type != "json_schema":
        return {"type": format.type}
    if format.schema is None:
        raise InvalidRequest("text.format of the type json_schema needs a schema", field="text.format")
    return {"type": "json_schema", "json_schema": {"schema": format.schema, "name": format.name}}
