"""How far an answer has come in its grammar, and what a matcher says of tokens that are only guessed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from nbgen.engine.grammar import Grammar, GrammarError, Matcher
from nbgen.engine.grammar_llguidance import LLGuidanceBackend
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from nbgen.protocols.structured_output import openai_grammar
from nbgen.sampling_params import SPACED

END = 0
ANSWER = b'{"a": [1, 22, 333], "b": "two words"}'
SCHEMA = Grammar("json_schema", '{"type": "object"}')


@pytest.fixture(scope="module", params=[XGrammarBackend, LLGuidanceBackend])
def begin(request: pytest.FixtureRequest, tiny_model: Path) -> Callable[[Grammar], Matcher]:
    """A matcher at a grammar's beginning. Its tokens are bytes and an end token."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    backend = request.param.from_tokenizer(tokenizer, 264, {END})
    return lambda grammar: backend.load(backend.compile(grammar)).matcher()


@pytest.fixture(scope="module")
def tokens(tiny_model: Path) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(tiny_model).encode(ANSWER.decode(), add_special_tokens=False)
    assert len(ids) == len(ANSWER)
    return ids


def mask(matcher: Matcher, *ahead: int) -> torch.Tensor:
    bitmask = torch.zeros((1, matcher.num_words), dtype=torch.int32)
    matcher.fill(bitmask, 0, ahead)
    return bitmask[0]


def test_what_may_follow_a_guess_is_what_may_follow_it_when_it_has_come(
    begin: Callable[[Grammar], Matcher], tokens: list[int]
) -> None:
    matcher, further = begin(SCHEMA), begin(SCHEMA)
    for token in tokens[:5]:
        further.accept(token)
    for place, token in enumerate(tokens):
        before = mask(matcher)
        ahead = tokens[place : place + 5]
        assert mask(matcher, *ahead).equal(mask(further))
        assert matcher.num_allowed(ahead) == len(ahead)
        assert mask(matcher).equal(before), "it stays where it is"
        assert not matcher.accept(token)
        if place + 5 < len(tokens):
            further.accept(tokens[place + 5])
    assert matcher.may_end


def test_guesses_end_where_the_grammar_forbids_one_or_ends(
    begin: Callable[[Grammar], Matcher], tokens: list[int]
) -> None:
    matcher = begin(SCHEMA)
    assert matcher.num_allowed([]) == 0
    assert matcher.num_allowed([*tokens[:8], tokens[0], *tokens[8:]]) == 8, "no brace follows a number"
    assert matcher.num_allowed([*tokens, END]) == len(tokens), "nothing follows the end"
    assert matcher.num_allowed([END]) == 0
    for token in tokens:
        matcher.accept(token)
    assert matcher.num_allowed([END]) == 0
    assert matcher.accept(END)


def test_white_space_is_the_models_choice_unless_the_schema_makes_it(
    begin: Callable[[Grammar], Matcher], tiny_model: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for written in (ANSWER, ANSWER.replace(b" [", b"["), ANSWER.replace(b": ", b"  :\n"), b"{ }"):
        ids = tokenizer.encode(written.decode(), add_special_tokens=False)
        for said, allowed in (({}, True), (SPACED, written == ANSWER)):
            matcher = begin(Grammar("json_schema", json.dumps({"type": "object", **said})))
            assert (matcher.num_allowed(ids) == len(ids)) == allowed, (written, said)


@pytest.mark.parametrize("regex", ["[^a]{3,}", ".{3,9}", r"\{[^a]{2,}"])
def test_an_end_token_is_no_text_that_the_grammar_allows(
    begin: Callable[[Grammar], Matcher], tokens: list[int], regex: str
) -> None:
    matcher, three = begin(Grammar("regex", regex)), tokens[:1] + tokens[4:6]
    for count in range(4):
        assert bool(mask(matcher, *three[:count])[0] & 1 << END) == (count == 3)
    for place, token in enumerate(three):
        assert not mask(matcher)[0] & 1 << END, place
        assert not matcher.accept(token)
    assert mask(matcher)[0] & 1 << END


def test_an_end_token_that_a_grammar_spells_may_come_as_its_text(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    backend = XGrammarBackend.from_tokenizer(tokenizer, 264, {END})
    matcher = backend.load(backend.compile(Grammar("ebnf", 'root ::= "x" "<|end|>"'))).matcher()
    assert not mask(matcher)[0] & 1 << END
    matcher.accept(tokenizer.convert_tokens_to_ids("x"))
    assert mask(matcher)[0] & 1 << END


#: Every character that a regex may read otherwise, and some that none does.
CHOICES = [
    "".join(map(chr, range(1, 128))),
    "a b",
    "#1 ~ &-",
    "^x$",
    "(a|b)?",
    "c{2}",
    "[d]*",
    "\\",
    '"',
    "\n",
    "é🙂\u2028",
]


def test_choices_are_what_they_say_and_no_reason_to_complain(
    begin: Callable[[Grammar], Matcher], tiny_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    regex = Grammar("regex", openai_grammar({"guided_choice": CHOICES})["regex"])
    encode = AutoTokenizer.from_pretrained(tiny_model).encode
    for choice in CHOICES:
        matcher, tokens = begin(regex), encode(choice, add_special_tokens=False)
        for token in tokens:
            matcher.accept(token)
        assert matcher.may_end
    for other in ("ab", "x", "cc", "a", "d"):
        matcher = begin(regex)
        with pytest.raises(GrammarError):
            [matcher.accept(token) for token in [*encode(other, add_special_tokens=False), END]]
    assert capfd.readouterr().err == ""
