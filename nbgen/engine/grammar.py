"""What a constrained answer must match, and the interface of the back ends that enforce it.

A back end compiles in a process of its own (`grammar_worker`) and loads the result in the engine. Plain Python.
"""

import re
from collections.abc import Sequence, Set
from typing import Any, NamedTuple, Protocol, Self

from nbgen.errors import InvalidRequest
from nbgen.sampling_params import SPACED

#: How a refusal names what could not be compiled, by sampling option.
LABELS = {"json_schema": "json", "regex": "regex", "ebnf": "ebnf", "structural_tag": "structural_tag"}

#: The most characters of white space between two JSON tokens, so that a model cannot write spaces for ever.
MAX_WHITESPACE = 8


#: The most characters of a library's error message that a refusal repeats.
MAX_WORDS = 300


class Grammar(NamedTuple):
    """A sampling option (`json_schema`, `regex`, `ebnf` or `structural_tag`) and its text."""

    kind: str
    text: str


class GrammarError(Exception):
    """The grammar cannot be compiled; the message is for whoever wrote it.

    `field` is the request's field with the fault, where that is not the option that asks for the grammar.
    """

    def __init__(self, words: str, field: str | None = None) -> None:
        super().__init__(words)
        self.field = field

    @classmethod
    def of_library(cls, error: object) -> Self:
        """A back end's own message without its source paths: it says where in the grammar the fault lies."""
        lines = [re.sub(r"^(\[[\d:]+\] )?\S*\.\w+:\d+: ", "", line).strip() for line in str(error).splitlines()]
        words = re.sub(r"^Check failed: \(.*?\) is false: ", "", next(filter(None, lines), "it is not valid"))
        return cls(words[:MAX_WORDS])


def refusal(kind: str, error: object) -> InvalidRequest:
    """The error for whoever sent a grammar of this kind that cannot be compiled."""
    if isinstance(error, GrammarError) and error.field is not None:
        return InvalidRequest(str(error), field=error.field)
    return InvalidRequest(f"Failed to compile {LABELS[kind]} grammar: {error}", field=kind)


def spaced(schema: Any) -> bool:
    """Whether a schema asks for JSON spaced as Python writes it; else the model may put white space anywhere."""
    return isinstance(schema, dict) and schema.items() >= SPACED.items()


class Matcher(Protocol):
    """How far one sequence has come in its grammar. Sequences do not share a matcher."""

    #: Words of 32 bits that a bitmask over the vocabulary has.
    num_words: int

    @property
    def may_end(self) -> bool:
        """Whether the tokens so far are a whole answer."""

    def accept(self, token_id: int) -> bool:
        """Take a token; returns whether it completes the answer. Raises GrammarError if the grammar forbids it."""

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come one after another without ending the answer. Does not take them."""

    def fill(self, bitmask: Any, row: int, ahead: Sequence[int] = ()) -> None:
        """Set row `row` of an int32 tensor `[rows, ceil(vocab / 32)]` to the tokens that may come next.

        End tokens are among them exactly when the answer may end. `ahead` are allowed tokens that come before; they are
        not taken.
        """


class Compiled(Protocol):
    """A grammar ready for use."""

    num_bytes: int

    def matcher(self) -> Matcher:
        """A new matcher at the grammar's beginning."""


class Backend(Protocol):
    """A library that compiles grammars, for one vocabulary."""

    #: Whether it can enforce as much of a schema as it supports, where the schema asks for that.
    knows_lenient: bool

    @classmethod
    def from_vocabulary(cls, vocabulary: bytes) -> Self:
        """The back end that `vocabulary` describes."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int, eos_ids: Set[int]) -> Self:
        """The back end for transformers' `tokenizer`."""

    @property
    def vocabulary(self) -> bytes:
        """What another process needs to build the same back end."""

    def compile(self, grammar: Grammar) -> bytes:
        """Compile, which may take long or crash the process. Raises GrammarError."""

    def load(self, compiled: bytes) -> Compiled:
        """Make what `compile` returned ready for use. Blocks no other thread, and takes no longer than `compile`."""
