"""What a request for an answer in parts makes of its options, and what reads its answer. Knows no sequences."""

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

#: Tokens at a prompt's end that tell what it has opened.
PROMPT_END = 64


class AnswerReading(NamedTuple):
    """How to sample, and what makes a parser for each sample; None where an answer is text.

    `unsaid` are special tokens that the text leaves out, so that its grammar may not take their words for text.
    """

    params: SamplingParams
    parser: Callable[[], AnswerParser] | None = None
    unsaid: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, request: GenerateRequest, prompt: list[int], tokenizer: Tokenizer, answers: AnswerFormat | None
    ) -> AnswerReading:
        """For a request whose prompt has these ids. Raises InvalidRequest for tools that the model cannot call."""
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
            if not request.prefix_ids:  # of which the grammar knows nothing
                begins = certain_begins(answers, params, tools)
            others: dict[str, None] = dict.fromkeys(GRAMMARS)
            params = msgspec.structs.replace(params, **{**others, "structural_tag": tag})
        unsaid = _unsaid(params, tokenizer, answers)
        if answers.has_special_tokens:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        read = partial(answers.parser, end, tools.tools, thoughts=request.thoughts, parallel=tools.parallel)
        return cls(params, partial(read, begins=begins), unsaid)


def _unsaid(params: SamplingParams, tokenizer: Tokenizer, answers: AnswerFormat | None) -> frozenset[int]:
    """All that are to be left out but those that part an answer: a structural tag names them, or the model's format."""
    if params.grammar is None or not params.skip_special_tokens:
        return frozenset()
    tag = params.structural_tag or ""

    def parts_it(text: str) -> bool:
        return bool(text) and (text in tag or json.dumps(text)[1:-1] in tag or bool(answers and answers.mentions(text)))

    return frozenset(token for token, text in tokenizer.skipped.items() if not parts_it(text))
