"""Sampling options and parser for a request whose answer is split into parts, or thinks before it follows a grammar.

Also splits whole answers. Knows no sequences.
"""

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
from nbgen.messages import AnswerPart, GenerateRequest, ToolOptions
from nbgen.sampling_params import GRAMMARS, SamplingParams
from nbgen.tokenizer_messages import ParseRequest

#: Tokens at a prompt's end that show which part of the answer it has opened.
PROMPT_END = 64

NO_CALLS = (
    "this model's chat template shows no way to call tools that is understood here: load a model that calls tools"
)
NO_THOUGHTS = (
    "this model's chat template shows no way to write thoughts that is understood here: load a model that thinks"
)


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
        """For a request with these prompt ids. Raises InvalidRequest for tools or thoughts that the model cannot write.

        Thoughts that are not wanted as parts are read as far as their tags are in the text, so that they are counted.
        """
        params, whole = request.params, request.thoughts and not request.parts
        if request.tools is not None and not (answers and answers.has_calls):
            raise InvalidRequest(f"{NO_CALLS}, or send tool_choice 'none'", field="tools")
        if whole and not (answers and answers.thought):
            raise InvalidRequest(f"{NO_THOUGHTS}, or leave require_reasoning out", field="require_reasoning")
        if answers is None or not (request.parts or whole):
            return cls(params, unsaid=_unsaid(params, tokenizer, None))
        end = tokenizer.text(prompt[-PROMPT_END:])
        tools, begins = request.tools or ToolOptions(tools=[]), NO_BEGINS
        opened = end if request.thoughts else None
        tag = answer_grammar(answers, params, request.tools, opened, must_think=whole)
        if tag is not None:
            if not request.prefix_ids:  # the grammar does not see these
                begins = certain_begins(answers, params, tools)
            others: dict[str, None] = dict.fromkeys(GRAMMARS)
            params = msgspec.structs.replace(params, **{**others, "structural_tag": tag})
        unsaid = _unsaid(params, tokenizer, answers)
        if whole and answers.has_special_tokens and params.skip_special_tokens:
            return cls(params, unsaid=unsaid)
        if answers.has_special_tokens:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        read = partial(answers.parser, end, tools.tools, thoughts=request.thoughts, parallel=tools.parallel)
        return cls(params, partial(read, begins=begins), unsaid)


def split(request: ParseRequest, answers: AnswerFormat | None) -> list[AnswerPart]:
    """The parts of an answer's text. Raises InvalidRequest if this model's answers have no such parts."""
    if request.tools and not (answers and answers.has_calls):
        raise InvalidRequest(NO_CALLS, field="tools")
    if answers is None or not (request.tools or answers.has_thoughts):
        raise InvalidRequest(NO_THOUGHTS, field="text")
    return answers.read(request.text, request.tools)


def _unsaid(params: SamplingParams, tokenizer: Tokenizer, answers: AnswerFormat | None) -> frozenset[int]:
    """All skipped tokens but those that separate parts: a structural tag or the model's format mentions these."""
    if params.grammar is None or not params.skip_special_tokens:
        return frozenset()
    tag = params.structural_tag or ""

    def parts_it(text: str) -> bool:
        return bool(text) and (text in tag or json.dumps(text)[1:-1] in tag or bool(answers and answers.mentions(text)))

    return frozenset(token for token, text in tokenizer.skipped.items() if not parts_it(text))
