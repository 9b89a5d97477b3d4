"""The messages about a model's tokenizer and chat template: texts to ids and back, an answer's text to its parts."""

from __future__ import annotations

from typing import Any

import msgspec

from nbgen.messages import AnswerPart, ChatMessage, Struct


class TokenizeRequest(Struct, frozen=True):
    """Texts, or one chat, to turn into token ids. Answered by a TokenizerAnswer."""

    rid: str
    texts: list[str] = msgspec.field(default_factory=list)
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final: bool = False
    template_options: dict[str, bool | int | float | str] = msgspec.field(default_factory=dict)
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)


class DetokenizeRequest(Struct, frozen=True):
    """Lists of token ids to turn into texts. Answered by a TokenizerAnswer."""

    rid: str
    token_ids: list[list[int]]
    skip_special_tokens: bool = True


class ParseRequest(Struct, frozen=True):
    """An answer's text to split into its parts: text and calls of these `tools`, or without any text and thoughts.

    Answered by a TokenizerAnswer.
    """

    rid: str
    text: str
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)


class TokenizerAnswer(Struct, frozen=True):
    """The ids of texts, the texts of ids, or an answer's parts. A refusal is a GenerateOutput that ends in an error."""

    rid: str
    token_ids: list[list[int]] = msgspec.field(default_factory=list)
    texts: list[str] = msgspec.field(default_factory=list)
    parts: list[AnswerPart] = msgspec.field(default_factory=list)
