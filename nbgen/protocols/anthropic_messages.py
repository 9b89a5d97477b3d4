"""Anthropic's messages: translates their bodies into the call of an equivalent OpenAI chat.

Follows Anthropic's API reference of `/v1/messages`, with the extra sampling fields that chat completions take here.
Unknown fields are ignored, known ones that this server does not support are refused. `cache_control` is ignored, since
prefixes are always cached, and so is `budget_tokens`: thinking may take all of `max_tokens`. A `max_tokens` of 0, which
would only fill a cache, is refused. Knows nothing of answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from nbgen.errors import InvalidRequest, renamed
from nbgen.protocols import openai
from nbgen.protocols.anthropic_turns import Message, Text, Turn, chat_turns
from nbgen.protocols.chat_messages import SWITCHES
from nbgen.protocols.json_body import convert, parse_object, refuse_inside, refuse_unsupported
from nbgen.protocols.openai import SAMPLING, Call
from nbgen.protocols.responses import to_be_counted
from nbgen.protocols.responses_tools import UNSUPPORTED_IN_TOOLS
from nbgen.sampling_params import GRAMMARS
from nbgen.tokenizer_messages import TokenizeRequest

#: Known fields that are not supported, with the values that ask for nothing and are accepted.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "container": (None,),
    "mcp_servers": (None, []),
    "inference_geo": (None,),
    "speed": (None, "standard"),
    "fallbacks": (None, []),
    "compaction": (None,),
    "context_management": (None, {}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
}
UNSUPPORTED_OUTPUT: dict[str, tuple[Any, ...]] = {"task_budget": (None,)}
#: Fields that chat bodies have under the same names.
SHARED = {*SAMPLING, *GRAMMARS, "max_tokens", "stream", "lora_path", "cache_salt", "separate_reasoning"} - {"n", "stop"}
#: Fields of a chat's body, and Anthropic's names for them.
OF_CHATS = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parameters": "input_schema",
    "image_url": "source",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Tool(msgspec.Struct):
    """A function that the caller runs. Examples of its input become part of its schema."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoice(msgspec.Struct):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(msgspec.Struct):
    """Whether the model is to think, and whether the caller gets its thoughts."""

    type: Literal["enabled", "disabled", "adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class Format(msgspec.Struct):
    """The schema that the text must follow."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputOptions(msgspec.Struct):
    """The answer's effort and format."""

    effort: str | None = None
    format: Format | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """A body of `/v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    system: str | list[Text] = ""
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputOptions = msgspec.field(default_factory=OutputOptions)
    output_format: Format | None = None
    chat_template_kwargs: dict[str, Any] = {}


class Body(CountBody, kw_only=True):
    """A body of `/v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None


B = TypeVar("B", bound=CountBody)


class MessageCall(NamedTuple):
    """The call, and whether the caller gets the model's thoughts."""

    call: Call
    thoughts: bool


def parse_message(raw: bytes) -> MessageCall:
    """The call in a body of `/v1/messages`. A `max_tokens` beyond the context is cut to it. Raises InvalidRequest."""
    fields = _fields(raw)
    body = _converted(fields, Body)
    call = _call(fields, body, rid=f"msg_{uuid.uuid4().hex}", stop=body.stop_sequences)
    requests = [msgspec.structs.replace(each, fit=True) for each in call.requests]
    return MessageCall(call._replace(requests=requests), body.thinking is None or body.thinking.display != "omitted")


def parse_count(raw: bytes) -> TokenizeRequest:
    """The prompt in a body of `/v1/messages/count_tokens`, to be tokenized. Raises InvalidRequest."""
    fields = _fields(raw)
    return to_be_counted(_call({}, _converted(fields, CountBody)), "messages")


def _fields(raw: bytes) -> dict[str, Any]:
    """The body's fields that are not null. Raises InvalidRequest for unsupported ones."""
    fields = {name: value for name, value in parse_object(raw).items() if value is not None}
    if "thread" in fields:  # this code makes clients go on without it
        words = "`thread` is not supported by this server: leave it out, and send the whole conversation each time"
        raise InvalidRequest(words, field="thread", code="thread_unsupported_request")
    refuse_unsupported(fields, UNSUPPORTED)
    refuse_inside(fields, "output_config", UNSUPPORTED_OUTPUT)
    tools = fields.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        field = f"tools[{place}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in (None, "custom"):
            words = "no tool runs on this server, and none is known to it: describe your own, with an input_schema"
            raise InvalidRequest(f"{field} of the type {kind!r:.80} is not supported: {words}", field=f"{field}.type")
        refuse_inside({field: tool}, field, UNSUPPORTED_IN_TOOLS)
    return fields


def _converted(fields: Mapping[str, Any], kind: type[B]) -> B:
    try:
        return convert(fields, kind)
    except InvalidRequest as error:
        if ".content[" not in (error.field or ""):
            raise
        known = "text, image (base64 or url), tool_use, tool_result, thinking and redacted_thinking"
        raise InvalidRequest(f"{error.message}; content is {known}", field=error.field) from None


def _call(fields: Mapping[str, Any], body: CountBody, **more: Any) -> Call:
    """The body as a chat's call; a refusal names the field as the caller wrote it."""
    turns = chat_turns(body.system, body.messages)
    choice, form = body.tool_choice, body.output_config.format or body.output_format
    switched = {} if body.thinking is None else dict.fromkeys(SWITCHES, body.thinking.type != "disabled")
    if choice and choice.type == "tool" and not choice.name:
        raise InvalidRequest("tool_choice of the type tool names none: give `name`", field="tool_choice.name")
    chat: dict[str, Any] = {
        **{name: value for name, value in fields.items() if name in SHARED},
        "model": body.model,
        "messages": turns,
        "continue_final_message": _continues(turns),
        "tools": [{"type": "function", "function": _function(tool)} for tool in body.tools],
        "tool_choice": choice and (CHOICES.get(choice.type) or {"type": "function", "function": {"name": choice.name}}),
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "response_format": form and {"type": "json_schema", "json_schema": {"schema": form.schema}},
        "reasoning_effort": body.output_config.effort,
        "chat_template_kwargs": switched | body.chat_template_kwargs,
        **more,
    }
    try:
        call = openai.chat_call(chat)
    except InvalidRequest as error:
        raise renamed(error, OF_CHATS) from None
    return call._replace(names=OF_CHATS | {own: OF_CHATS.get(name, name) for own, name in call.names.items()})


def _continues(turns: Sequence[Turn]) -> bool:
    """Whether the answer continues the last turn. Raises InvalidRequest if that turn waits for tool results."""
    last = turns[-1] if turns else {}
    if last.get("tool_calls"):
        raise InvalidRequest(
            "the last message calls tools: send what came of it after that, as the tool_result of a user's message",
            field="messages",
        )
    return last.get("role") == "assistant" and bool(last["content"])


def _function(tool: Tool) -> dict[str, Any]:
    examples = {"examples": tool.input_examples} if tool.input_examples else {}
    told = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    return {**told, "parameters": tool.input_schema | examples}
