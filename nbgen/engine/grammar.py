"""What a constrained answer must match, and what a back end has to offer to make it so.

A back end compiles in a process of its own (`grammar_worker`) and loads what came out in the engine. Plain Python.
"""

import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple, Protocol, Self

from nbgen.errors import InvalidRequest
from nbgen.sampling_params import SPACED

#: How a refusal names what could not be compiled, by sampling option.
LABELS = {"json_schema": "json", "regex": "regex", "ebnf": "ebnf", "structural_tag": "structural_tag"}

#: White space between two JSON tokens, in characters: a model that loves spaces must get on.
MAX_WHITESPACE = 8


#: Characters of a library's words that a refusal repeats.
MAX_WORDS = 300


class Grammar(NamedTuple):
    """A sampling option (`json_schema`, `regex`, `ebnf` or `structural_tag`) and its text."""

    kind: str
    text: str


class GrammarError(Exception):
    """The grammar cannot be compiled; the words are for whoever wrote it.

    `field` is of their request, where the fault is in another than the option that asks for the grammar.
    """

    def __init__(self, words: str, field: str | None = None) -> None:
        super().__init__(words)
        self.field = field

    @classmethod
    def of_library(cls, error: object) -> Self:
        """A back end's own words without its source paths: they say where in the grammar the fault lies."""
        lines = [re.sub(r"^(\[[\d:]+\] )?\S*\.\w+:\d+: ", "", line).strip() for line in str(error).splitlines()]
        words = re.sub(r"^Check failed: \(.*?\) is false: ", "", next(filter(None, lines), "it is not valid"))
        return cls(words[:MAX_WORDS])


def refusal(kind: str, error: object) -> InvalidRequest:
    """What whoever sent a grammar of this kind is told of why it cannot be compiled."""
    if isinstance(error, GrammarError) and error.field is not None:
        return InvalidRequest(str(error), field=error.field)
    return InvalidRequest(f"Failed to compile {LABELS[kind]} grammar: {error}", field=kind)


def spaced(schema: Any) -> bool:
    """Whether a schema's JSON is to be as Python writes it; else white space may stand wherever the model puts some."""
    return isinstance(schema, dict) and schema.items() >= SPACED.items()


class Matcher(Protocol):
    """How far one sequence has come in its grammar. Its own, never shared."""

    #: Words of 32 bits that a bitmask over the vocabulary has.
    num_words: int

    @property
    def may_end(self) -> bool:
        """Whether what has come is a whole answer."""

    def accept(self, token_id: int) -> bool:
        """Take a token; whether the answer is complete with it. Raises GrammarError if the grammar forbids it."""

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come, one after another, with something to follow each. Stays where it is."""

    def fill(self, bitmask: Any, row: int, ahead: Sequence[int] = ()) -> None:
        """Set row `row` of an int32 tensor `[rows, ceil(vocab / 32)]` to the tokens that may come next.

        End tokens are among them exactly when the answer may end. `ahead` are allowed tokens that come before; it stays
        where it is.
        """


class Compiled(Protocol):
    """A grammar ready for use."""

    num_bytes: int

    def matcher(self) -> Matcher:
        """One at the grammar's beginning."""


class Backend(Protocol):
    """A library that knows grammars, for one vocabulary."""

    #: Whether a schema may tell it to follow as much as it can.
    knows_lenient: bool

    @classmethod
    def from_vocabulary(cls, vocabulary: bytes) -> Self:
        """The back end that `vocabulary` describes."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int, eos_ids: Set[int]) -> Self:
        """The back end for transformers' `tokenizer`."""

    @property
    def vocabulary(self) -> bytes:
        """What another process needs to build the same."""

    def compile(self, grammar: Grammar) -> bytes:
        """The work that may take long, or end the process. Raises GrammarError."""

    def load(self, compiled: bytes) -> Compiled:
        """What `compile` made, ready for use. It holds up no other thread, and takes no longer than that took."""
