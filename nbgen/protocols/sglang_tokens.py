"""`/tokenize` and `/detokenize`, as in SGLang 0.5.23 and OpenAI-style servers. Errors are in OpenAI's shape.

Knows no tokenizer: the engine has it.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols import openai
from nbgen.protocols.chat_messages import Turn, chat_messages, manner, template_options
from nbgen.protocols.json_body import are_ids, convert, parse_object, refuse_unsupported
from nbgen.protocols.openai_tools import Tool, ToolChoice, tool_options
from nbgen.tokenizer_messages import DetokenizeRequest, TokenizerAnswer, TokenizeRequest

MAX_TEXTS = 1024


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A body of `/tokenize`: one text or several, or a chat."""

    prompt: str | list[str] | None = None
    messages: list[Turn] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


def parse_tokenize(raw: bytes) -> tuple[TokenizeRequest, bool]:
    """The request to the tokenizer, and whether the answer is a single list of ids. Raises InvalidRequest."""
    fields = parse_object(raw)
    refuse_unsupported(fields, openai.UNSUPPORTED)
    body = convert(fields, TokenizeBody)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give exactly one of `prompt` and `messages`", field="prompt")
    tools = tool_options(body.tools, body.tool_choice)
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
    _check_count("prompt", len(texts))
    request = TokenizeRequest(
        rid=uuid.uuid4().hex,
        texts=texts,
        messages=None if body.messages is None else chat_messages(body.messages),
        tools=tools.tools if tools else [],
        add_special_tokens=body.add_special_tokens,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final=body.continue_final_message,
        template_options=template_options(manner(body.chat_template_kwargs, body.reasoning_effort)),
    )
    return request, not isinstance(body.prompt, list)


def parse_detokenize(raw: bytes) -> tuple[DetokenizeRequest, bool]:
    """The request to the tokenizer, and whether it has a single list of ids. Raises InvalidRequest."""
    fields = parse_object(raw)
    tokens = fields.get("tokens")
    single = not (isinstance(tokens, list) and tokens and isinstance(tokens[0], list))
    lists = [tokens] if single else tokens
    if not isinstance(lists, list) or not all(map(are_ids, lists)):
        raise InvalidRequest("tokens must be a list of token ids, or a list of such lists", field="tokens")
    _check_count("tokens", len(lists))
    skip = fields.get("skip_special_tokens", True)
    if not isinstance(skip, bool):
        raise InvalidRequest("skip_special_tokens must be true or false", field="skip_special_tokens")
    return DetokenizeRequest(rid=uuid.uuid4().hex, token_ids=lists, skip_special_tokens=skip), single


def tokenized(answer: TokenizerAnswer, single: bool, context_length: int) -> bytes:
    """The answer: the ids, their number, and the model's context length."""
    ids = answer.token_ids
    tokens, count = (ids[0], len(ids[0])) if single else (ids, [len(each) for each in ids])
    return msgspec.json.encode({"tokens": tokens, "count": count, "max_model_len": context_length})


def detokenized(answer: TokenizerAnswer, single: bool) -> bytes:
    """The text, or the list of texts."""
    return msgspec.json.encode({"text": answer.texts[0] if single else answer.texts})


def _check_count(name: str, count: int) -> None:
    if count > MAX_TEXTS:
        raise InvalidRequest(f"{name} holds {count} entries; at most {MAX_TEXTS}", field=name)
