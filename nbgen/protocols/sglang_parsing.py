"""SGLang's `/parse_function_call` and `/separate_reasoning`: bodies to requests, an answer's parts to answers.

Follows SGLang 0.5.23, but the names of its parsers choose nothing: as one model is served, a text is read in the format
that this model's chat template shows. Knows no format.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import AnswerPart
from nbgen.protocols.json_body import convert, parse_object
from nbgen.protocols.openai_tools import Tool, tool_options
from nbgen.protocols.sglang import SchemaError
from nbgen.tokenizer_messages import ParseRequest

#: Most characters of an answer.
MAX_TEXT = 2**17

T = TypeVar("T")


class CallsBody(msgspec.Struct, kw_only=True):
    """A body of `/parse_function_call`."""

    text: str
    tools: list[Tool] = []
    tool_call_parser: str | None = None


class ThoughtsBody(msgspec.Struct, kw_only=True):
    """A body of `/separate_reasoning`."""

    text: str
    reasoning_parser: str | None = None
    return_blocks: bool = False


class Parsing(NamedTuple):
    """What one call asks for. The answer has blocks in their order if they are `listed`."""

    request: ParseRequest
    listed: bool = False


def parse_calls(raw: bytes) -> Parsing:
    """The text in which calls of the body's tools are to be found. Raises InvalidRequest."""
    body = _body(raw, CallsBody)
    options = tool_options(body.tools, None)
    return Parsing(_request(body.text, options.tools if options else []))


def parse_thoughts(raw: bytes) -> Parsing:
    """The text from which thoughts are to be separated. Raises InvalidRequest."""
    body = _body(raw, ThoughtsBody)
    return Parsing(_request(body.text, []), body.return_blocks)


def calls_body(parsing: Parsing, parts: Iterable[AnswerPart]) -> bytes:
    """The text without the calls, and each call, which names its function's place among the tools."""
    parts = [*parts]
    names = [tool["function"]["name"] for tool in parsing.request.tools]
    calls = [part.tool_call for part in parts if part.tool_call and not part.cut]
    found = [{"tool_index": names.index(call.name), "name": call.name, "parameters": call.arguments} for call in calls]
    return msgspec.json.encode({"normal_text": "".join(part.content for part in parts), "calls": found})


def thoughts_body(parsing: Parsing, parts: Iterable[AnswerPart]) -> bytes:
    """The thoughts and the text, in one piece each and, if asked for, as blocks."""
    named = [("reasoning", part.reasoning) if part.reasoning else ("text", part.content) for part in parts]
    blocks = [
        {"type": kind, "text": "".join(text for _, text in each)}
        for kind, each in groupby(named, key=lambda item: item[0])
    ]
    texts = {kind: [block["text"] for block in blocks if block["type"] == kind] for kind in ("reasoning", "text")}
    answer: dict[str, Any] = {"reasoning_text": "".join(texts["reasoning"]), "text": "".join(texts["text"])}
    if parsing.listed:
        answer |= {"reasoning_blocks": texts["reasoning"], "text_blocks": texts["text"], "blocks": blocks}
    return msgspec.json.encode(answer)


def _body(raw: bytes, kind: type[T]) -> T:
    try:
        return convert(parse_object(raw), kind)
    except InvalidRequest as error:
        raise SchemaError(error.message, field=error.field) from None


def _request(text: str, tools: list[dict[str, Any]]) -> ParseRequest:
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"text has {len(text)} characters; at most {MAX_TEXT}", field="text")
    return ParseRequest(rid=uuid.uuid4().hex, text=text, tools=tools)
