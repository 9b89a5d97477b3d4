"""Grammars through llguidance, whose lexer and Earley parser work lazily: little to compile, more work per token.

An optional back end (`grammar_backend`). Knows no sequences and no scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import llguidance
import llguidance.hf
import llguidance.numpy
import msgspec
from llguidance import LLMatcher, LLTokenizer

from nbgen.engine.grammar import MAX_WHITESPACE, Grammar, GrammarError, spaced
from nbgen.engine.grammar_limits import ANY_JSON
from nbgen.engine.schema_dates import with_dates

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

WHITESPACE: Any = {"whitespace_flexible": True, "whitespace_pattern": rf"[ \n\t\r]{{0,{MAX_WHITESPACE}}}"}


class LLGuidanceBackend:
    """Compiles and matches for one vocabulary."""

    knows_lenient = True

    def __init__(self, tokenizer: str, vocab_size: int, eos_ids: list[int]) -> None:
        """`tokenizer` is the JSON of a fast tokenizer."""
        if not eos_ids:
            raise GrammarError("llguidance needs a model with an end token")
        self._parts = (tokenizer, vocab_size, eos_ids)
        self._tokenizer = LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_ids)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_ids: Set[int]
    ) -> LLGuidanceBackend:
        """For a model's tokenizer. Rows of the vocabulary that no token has are never allowed."""
        if not tokenizer.is_fast:
            raise GrammarError("llguidance needs a fast tokenizer, which this model has not")
        size = max(vocab_size, max(tokenizer.get_vocab().values()) + 1)
        return cls(tokenizer.backend_tokenizer.to_str(), size, sorted(eos_ids))

    @classmethod
    def from_vocabulary(cls, vocabulary: bytes) -> LLGuidanceBackend:
        return cls(*msgspec.msgpack.decode(vocabulary, type=tuple[str, int, list[int]]))

    @property
    def vocabulary(self) -> bytes:
        return msgspec.msgpack.encode(self._parts)

    def compile(self, grammar: Grammar) -> bytes:
        """The grammar in llguidance's own form, after a trial: the rest of the work is done token by token."""
        try:
            text = _own_form(grammar)
        except (ValueError, AssertionError, KeyError) as error:
            raise GrammarError.of_library(error) from None
        matcher = self._matcher(text)
        mask = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.vocab_size)
        llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
        if not mask.any():
            raise GrammarError("it matches no text at all")
        _check(matcher)
        return text.encode()

    def load(self, compiled: bytes) -> CompiledLLGuidance:
        return CompiledLLGuidance(self._matcher(compiled.decode()), self._tokenizer, len(compiled))

    def _matcher(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, text, log_level=0)
        _check(matcher)
        return matcher


class CompiledLLGuidance:
    """A grammar with a matcher at its beginning, to be copied."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, num_bytes: int) -> None:
        self._beginning = matcher
        self._tokenizer = tokenizer
        self.num_bytes = num_bytes

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._beginning.deep_copy(), self._tokenizer)


class LLGuidanceMatcher:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos_ids = frozenset(tokenizer.eos_tokens)
        self.num_words = -(-tokenizer.vocab_size // 32)

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting()

    def accept(self, token_id: int) -> bool:
        if not self._matcher.consume_token(token_id):
            raise GrammarError(f"the token {token_id} is none that the grammar allows here")
        return token_id in self._eos_ids

    def num_allowed(self, tokens: Sequence[int]) -> int:
        end = next((place for place, token_id in enumerate(tokens) if token_id in self._eos_ids), len(tokens))
        return self._matcher.validate_tokens(list(tokens[:end]))

    def fill(self, bitmask: torch.Tensor, row: int, ahead: Sequence[int] = ()) -> None:
        matcher = self._matcher
        if ahead:  # in a copy: a matcher over its own limits cannot go back
            matcher = matcher.deep_copy()
            matcher.consume_tokens(list(ahead))
        llguidance.numpy.fill_next_token_bitmask(matcher, bitmask.numpy(), row)
        if matcher.is_error():  # over its own limits
            bitmask[row] = 0


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        words = matcher.get_error()
        if fault := re.search(r"^error: (.*)", words, re.MULTILINE):  # below a regex and a mark of the place in it
            words = words.partition("\n")[0].replace("regex parse error:", fault[1])
        raise GrammarError.of_library("it matches no text at all" if words.startswith("NoExtension") else words)


def _own_form(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            schema: Any = True if grammar.text == ANY_JSON else with_dates(json.loads(grammar.text))
            schema = {} if schema is True else schema  # options have their place in an object
            plain = schema is False or spaced(schema)
            return LLMatcher.grammar_from_json_schema(schema, overrides=None if plain else WHITESPACE)
        case "regex":
            return LLMatcher.grammar_from_regex(_unanchored(grammar.text))
        case "ebnf":
            return llguidance.grammar_from("gbnf", grammar.text)
    return _structures(json.loads(grammar.text))


def _unanchored(regex: str) -> str:
    """The regex without anchors at its ends, where an answer begins and ends anyway; an escaped dollar is no anchor."""
    body = regex.removesuffix("$")
    backslashes = len(body) - len(body.rstrip("\\"))
    return (regex if backslashes % 2 else body).removeprefix("^")


def _structures(tag: dict[str, Any]) -> str:
    if "structures" not in tag:
        raise GrammarError(
            "llguidance takes structural tags of the form `structures` and `triggers` only; those with `format`, which "
            "calls of tools need too, take the default back end: start the server with --grammar-backend=xgrammar"
        )
    tags = [
        llguidance.StructTag(
            trigger=next((t for t in tag["triggers"] if each["begin"].startswith(t)), ""),
            begin=each["begin"],
            grammar=with_dates(each.get("schema") or {}),
            end=each["end"],
        )
        for each in tag["structures"]
    ]
    return llguidance.StructTag.to_grammar(tags, assume_special=False)
