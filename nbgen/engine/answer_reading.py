"""Sampling options and parser for a request whose answer is split into parts. Knows no sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.answer_parser import AnswerParser
from nbgen.engine.call_grammar import answer_grammar, certain_begins
from nbgen.engine.certain_calls import NO_BEGINS
from nbgen.engine.tokenizer import Tokenizer
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, ToolOptions
from nbgen.sampling_params import GRAMMARS, SamplingParams

#: Tokens at a prompt's end that show which part of the answer it has opened.
PROMPT_END = 64


class AnswerReading(NamedTuple):
    """How to sample, and a function that makes a parser for each sample; None if answers are plain text.

    `unsaid` are special tokens that the text leaves out: the grammar must not accept them as their written text.
    """

    params: SamplingParams
    parser: Callable[[], AnswerParser] | None = None
    unsaid: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, request: GenerateRequest, prompt: list[int], tokenizer: Tokenizer, answers: AnswerFormat | None
    ) -> AnswerReading:
        """For a request with these prompt ids. Raises InvalidRequest for tools if the model cannot call any."""
        params = request.params
        if request.tools is not None and not (answers and answers.has_calls):
            raise InvalidRequest(
                "this model's chat template shows no way to call tools that is understood here: load a model that "
                "calls tools, or send tool_choice 'none'",
                field="tools",
            )
        if not request.parts or answers is None:
            return cls(params, unsaid=_unsaid(params, tokenizer, None))
        end = tokenizer.text(prompt[-PROMPT_END:])
        tools, begins = request.tools or ToolOptions(tools=[]), NO_BEGINS
        tag = answer_grammar(answers, params, request.tools, end if request.thoughts else None)
        if tag is not None:
            if not request.prefix_ids:  # the grammar does not see these
                begins = certain_begins(answers, params, tools)
            others: dict[str, None] = dict.fromkeys(GRAMMARS)
            params = msgspec.structs.replace(params, **{**others, "structural_tag": tag})
        unsaid = _unsaid(params, tokenizer, answers)
        if answers.has_special_tokens:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        read = partial(answers.parser, end, tools.tools, thoughts=request.thoughts, parallel=tools.parallel)
        return cls(params, partial(read, begins=begins), unsaid)


def _unsaid(params: SamplingParams, tokenizer: Tokenizer, answers: AnswerFormat | None) -> frozenset[int]:
    """All skipped tokens but those that separate parts: a structural tag or the model's format mentions these."""
    if params.grammar is None or not params.skip_special_tokens:
        return frozenset()
    tag = params.structural_tag or ""

    def parts_it(text: str) -> bool:
        return bool(text) and (text in tag or json.dumps(text)[1:-1] in tag or bool(answers and answers.mentions(text)))

    return frozenset(token for token, text in tokenizer.skipped.items() if not parts_it(text))
