"""How a model writes the parts of an answer that are not plain text: thoughts and tool calls. From its chat template.

A chat template shows how the model's own turns look. So turns with marker texts are rendered: what stands around the
markers is what the model itself writes there. From it come a `response_template` for transformers' parser, which reads
answers (`answer_parser`), and the texts of which a grammar for calls is made (`call_grammar`). Knows no tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils.chat_parsing.response_templates import ResponseTemplate, load_response_template

from nbgen.engine.answer_parser import AnswerParser
from nbgen.engine.argument_grammar import STYLE
from nbgen.engine.call_format import ARGUMENTS, CALL_FIELDS, END_OF_CALLS, NAMES, OTHER_ID, TOOLS, CallFormat, call_turn
from nbgen.engine.certain_calls import NO_BEGINS, CallBegins
from nbgen.engine.harmony import HARMONY, harmony_calls, writes_harmony
from nbgen.engine.python_calls import python_calls, with_told_calls
from nbgen.engine.template_turns import Render, TemplateTurns
from nbgen.engine.thought_format import LEAD, THOUGHTS, ThoughtFormat
from nbgen.engine.told_calls import told_calls
from nbgen.messages import AnswerPart

log = logging.getLogger(__name__)


class AnswerFormat:
    """How to read answers: a response template, the model's own or derived from its chat template."""

    def __init__(
        self, response_template: Mapping[str, Any], calls: CallFormat | None, thought: ThoughtFormat | None
    ) -> None:
        """Raises ValueError for an invalid response template."""
        load_response_template(dict(response_template))
        self._template = response_template
        self._patterns = json.dumps(response_template, ensure_ascii=False).replace("\\", "")
        self.calls = calls
        self.thought = thought
        #: Whether the texts that separate the parts include special tokens, which text without these would lack.
        self.has_special_tokens = False
        #: Whether the prompt itself opens a thought.
        self.opens_thought = False

    @classmethod
    def of(
        cls,
        render: Render,
        source: str,
        ends: Sequence[str] = (),
        own: Mapping[str, Any] | None = None,
        tokens: Collection[str] = (),
    ) -> AnswerFormat | None:
        """The format of a chat template with the text `source`; None if answers are always plain text.

        `ends` are the texts of the model's end tokens, `tokens` those of its added tokens; `own` is a response template
        that came with the model.
        """
        plain = TemplateTurns(render)
        thought = HARMONY if writes_harmony(plain) else ThoughtFormat.of(plain, source)
        calls = _calls(TemplateTurns(render, TOOLS, ends, thought.after if thought else ""), thought, source, tokens)
        if own is None and calls is None and thought is None:
            return None
        found = cls(_response_template(calls, thought) if own is None else own, calls, thought)
        found.opens_thought = thought is not None and thought.begun(plain.text(opens=True))
        return found

    @classmethod
    def of_model(
        cls, model: PreTrainedTokenizerBase | ProcessorMixin, render: Render, ends: Sequence[str]
    ) -> AnswerFormat | None:
        """The format of a model whose tokenizer or processor renders chats; None without a chat template."""
        if (source := model.chat_template) is None:
            return None
        text = source if isinstance(source, str) else "".join(source.values())
        tokenizer: Any = getattr(model, "tokenizer", model)
        try:
            tokens = {str(token): token.special for token in tokenizer.added_tokens_decoder.values()}
            found = cls.of(render, text, ends, getattr(tokenizer, "response_template", None), tokens)
            if found is not None:
                found.has_special_tokens = any(special and found.mentions(each) for each, special in tokens.items())
            return found
        except (ValueError, TypeError):
            log.exception("the model's response template cannot be read: answers are taken for text")
            return None

    @property
    def has_calls(self) -> bool:
        return any(field in self._template["fields"] for field in CALL_FIELDS)

    @property
    def has_thoughts(self) -> bool:
        return any(field in self._template["fields"] for field in THOUGHTS)

    def parser(
        self,
        prompt: str,
        tools: list[dict[str, Any]],
        *,
        thoughts: bool,
        parallel: bool = True,
        begins: CallBegins = NO_BEGINS,
    ) -> AnswerParser:
        """A parser for the answer to `prompt`; `thoughts`: read them as parts; `parallel`: not only the first call."""
        return AnswerParser(self._part(thoughts, bool(tools)), prompt, tools, parallel=parallel, begins=begins)

    def read(self, text: str, tools: list[dict[str, Any]]) -> list[AnswerPart]:
        """The parts of a whole answer: text and calls of these tools, or without any text and thoughts."""
        thought = self.thought
        opened = thought is not None and thought.is_open_at_start(text, self.opens_thought)
        prompt = thought.before if thought is not None and opened else ""
        return self.parser(prompt, tools, thoughts=not tools).feed(text, last=True)

    def mentions(self, token: str) -> bool:
        """Whether a token separates parts of an answer."""
        return token in self._patterns

    @lru_cache  # noqa: B019  (a model has one format, which lives as long as it)
    def _part(self, thoughts: bool, calls: bool) -> ResponseTemplate:
        left_out = (() if thoughts else (*THOUGHTS, LEAD)) + (() if calls else (*CALL_FIELDS, END_OF_CALLS))
        fields = {name: each for name, each in self._template["fields"].items() if name not in left_out}
        return load_response_template({**self._template, "fields": fields})


def _response_template(calls: CallFormat | None, thought: ThoughtFormat | None) -> dict[str, Any]:
    fields = {"content": {"content": "text"}, **(calls.fields if calls else {}), **(thought.fields if thought else {})}
    return {"start_anchor_pattern": thought.anchor if thought else r"\Z", "fields": fields}


def _calls(
    turns: TemplateTurns, thought: ThoughtFormat | None, source: str, tokens: Collection[str]
) -> CallFormat | None:
    """The format of calls, if parsing the calls that the template writes returns the calls that it was given."""
    harmony = thought is HARMONY
    own = harmony_calls(turns) if harmony else python_calls(turns, source, tokens) or CallFormat.of(turns)
    calls = own or (None if harmony else told_calls(turns, tokens))
    if calls is None or not _reads(calls, turns, thought if harmony else None):
        return None
    turn = partial(call_turn, turns, as_text=calls.arguments_as_text)
    single = not (calls.in_content or turn(NAMES, call_id=calls.ids))
    known = calls.in_content or turn(NAMES[:1], call_id=OTHER_ID)
    calls = calls._replace(single=single, ids="" if known else calls.ids)
    return calls if harmony or calls.style == STYLE else with_told_calls(calls, turns)


def _reads(calls: CallFormat, turns: TemplateTurns, thought: ThoughtFormat | None) -> bool:
    try:
        answers = AnswerFormat(_response_template(calls, thought), calls, None)
    except ValueError:
        return False
    for names in (NAMES[:1], NAMES) if calls.separator else (NAMES[:1],):
        wanted = [(name, ARGUMENTS) for name in names]
        shown = calls.style != STYLE and not calls.in_content
        turn = partial(call_turn, turns, names, as_text=calls.arguments_as_text, call_id=calls.ids)
        text = turn() if shown else calls.written(wanted)
        parts = answers.parser("", TOOLS, thoughts=False).feed(text, last=True)
        found = [(part.tool_call.name, json.loads(part.tool_call.arguments)) for part in parts if part.tool_call]
        if found != wanted:
            return False
    return True
