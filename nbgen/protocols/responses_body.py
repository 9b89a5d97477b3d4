"""The fields of a body of OpenAI's `/v1/responses`, and those that are not supported.

Follows OpenAI's API reference, with the extra fields that chat completions take here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import convert, refuse_inside, refuse_unsupported
from nbgen.protocols.openai import UNSUPPORTED_STREAM_OPTIONS
from nbgen.protocols.responses_items import Item
from nbgen.protocols.responses_tools import Tool, refuse_unsupported_tools

LOGPROBS = "message.output_text.logprobs"
#: Values of `include`: log-probabilities; the others are always there, or belong to tools that are not here.
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
#: Known fields that are not supported, with the values that ask for nothing and are accepted.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "prompt": (None,),
    "context_management": (None, []),
    "moderation": (None,),
    "access_programs": (None, {}),
    "background_options": (None, {}),
    "image": (None, {}),
    "personality": (None,),
    "n": (None, 1),
    "return_token_ids": (None, False),
    "return_prompt_token_ids": (None, False),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
    "routed_experts_start_len": (None,),
}
#: Fields of a chat's body, and their names here.
OF_CHATS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": f"top_logprobs, or {LOGPROBS} in include",
}
UNSUPPORTED_REASONING: dict[str, tuple[Any, ...]] = {
    # The summary is always the whole reasoning, whatever length is asked for.
    **dict.fromkeys(("summary", "generate_summary"), (None, "auto", "concise", "detailed")),
    "context": (None, "auto", "all_turns"),
    "mode": (None, "standard"),
}


class Format(msgspec.Struct):
    """The format of the text; json_schema has the schema beside its name."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    """The format and verbosity of the answer's text."""

    given: Format | None = msgspec.field(default=None, name="format")
    verbosity: Literal["low", "medium", "high"] | None = None

    @property
    def format(self) -> Format:
        """The given format, or the default."""
        return self.given or Format()


class ReasoningOptions(msgspec.Struct):
    """How much the model is to think, and whether the caller gets its thoughts as a summary."""

    effort: str | None = None
    summary: str | None = None
    #: The former name of `summary`.
    generate_summary: str | None = None


class Reference(msgspec.Struct):
    """A conversation by its id."""

    id: str


class Body(msgspec.Struct, kw_only=True):
    """The fields that chat bodies lack, or give another meaning."""

    input: str | list[Item] | None = None
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Reference | None = None
    max_output_tokens: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions = msgspec.field(default_factory=TextOptions)
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    #: "auto" drops the oldest turns if the context does not hold them all.
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
        """The id of its conversation; "" if it belongs to none."""
        given = self.conversation
        return given.id if isinstance(given, Reference) else given or ""

    @property
    def logprobs(self) -> bool:
        """Whether the text comes with its log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def summary(self) -> str | None:
        """The kind of reasoning summary that is asked for, if any."""
        given = self.reasoning or ReasoningOptions()
        return given.summary or given.generate_summary

    @property
    def kept(self) -> bool:
        return self.store is not False


#: Fields that are not passed on to the chat's body as they are.
OWN = {*Body.__struct_fields__, "stream_options"} - {
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_logprobs",
    "parallel_tool_calls",
}


def parse_body(fields: dict[str, Any]) -> Body:
    """The body of these fields. Raises InvalidRequest."""
    _refuse_unsupported(fields)
    body = convert(fields, Body)
    _check(body)
    return body


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    refuse_unsupported(fields, UNSUPPORTED)
    for name, ours in OF_CHATS.items():
        if fields.get(name, False) is not False:
            raise InvalidRequest(f"`{name}` is a field of chat completions: here it is {ours}", field=name)
    refuse_inside(fields, "stream_options", UNSUPPORTED_STREAM_OPTIONS)
    refuse_inside(fields, "reasoning", UNSUPPORTED_REASONING)
    refuse_unsupported_tools(fields.get("tools"))


def _check(body: Body) -> None:
    check_names(body.include or ())
    if body.background and not body.kept:
        raise InvalidRequest("background needs store: what nobody waits for is fetched later", field="background")
    if body.conversation_id and body.previous_response_id:
        raise InvalidRequest(
            "conversation and previous_response_id are mutually exclusive: give one of them", field="conversation"
        )
    if body.input is None and not (body.conversation_id or body.previous_response_id):
        raise InvalidRequest(
            "give `input`, or what is to go on without: conversation or previous_response_id", field="input"
        )
    check_metadata(body.metadata or {})


def check_names(included: Sequence[str]) -> None:
    """Raise InvalidRequest for an unknown value of `include`."""
    if unknown := [name for name in included if name not in INCLUDABLE]:
        raise InvalidRequest(
            f"include has {unknown[0]!r:.80}; there are {', '.join(sorted(INCLUDABLE))}", field="include"
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raise InvalidRequest for too many entries, or too long ones."""
    longest = max(map(len, metadata), default=0), max(map(len, metadata.values()), default=0)
    if len(metadata) > MAX_METADATA or longest[0] > MAX_METADATA_NAME or longest[1] > MAX_METADATA_TEXT:
        raise InvalidRequest(
            f"metadata has at most {MAX_METADATA} entries with names of {MAX_METADATA_NAME} and texts of "
            f"{MAX_METADATA_TEXT} characters",
            field="metadata",
        )
