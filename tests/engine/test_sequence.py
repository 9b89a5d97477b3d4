"""How a sequence ends, in which order it looks, and what it tells of itself."""

from typing import Any

import pytest

from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.sequence import LOGPROB_CHUNK, Sequence
from nbgen.messages import FinishReason, LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams

STOP_TOKEN = ord("!")


class Grammar:
    """Takes everything, is complete after `whole` and may end after each of `ends`."""

    def __init__(self, whole: str = "", ends: str = "") -> None:
        self.whole, self.ends, self.last = whole, ends, ""

    def accept(self, token_id: int) -> bool:
        self.last = chr(token_id)
        return self.last == self.whole

    @property
    def may_end(self) -> bool:
        return self.last in self.ends


def sequence(prompt: str = "hi", budget: int = 4, stops: tuple[str, ...] = (), **changes: Any) -> Sequence:
    """One whose tokens are characters."""
    ids = list(map(ord, prompt))
    text = Detokenizer(lambda tokens: "".join(map(chr, tokens)), lambda _: False, ids)
    given = {"params": SamplingParams(), "stop_token_ids": frozenset([STOP_TOKEN]), **changes}
    return Sequence("r", 3, ids, budget=budget, seed=0, detokenizer=text, stop_strings=StopStrings(stops), **given)


def answer(s: Sequence, tokens: str) -> tuple[str, FinishReason | None]:
    """The text that comes of tokens, and why it ended: with the last of them, if at all."""
    text = ""
    for token in tokens:
        assert s.finish_reason is None
        text += s.append(ord(token))
    return text, s.finish_reason


@pytest.mark.parametrize(
    ("tokens", "text", "reason"),
    [
        ("abc", "abc", None),
        ("abcd", "abcd", FinishReason(type="length", length=4)),
        ("ab!", "ab", FinishReason(type="stop", matched=STOP_TOKEN)),
        ("abc!", "abc", FinishReason(type="stop", matched=STOP_TOKEN)),
        ("aST", "a", FinishReason(type="stop", matched="ST")),
        ("abST", "ab", FinishReason(type="stop", matched="ST")),
        ("abcS", "abcS", FinishReason(type="length", length=4)),
        ("aS!", "aS", FinishReason(type="stop", matched=STOP_TOKEN)),
    ],
)
def test_why_an_answer_ends(tokens: str, text: str, reason: FinishReason | None) -> None:
    assert answer(sequence(stops=("ST",)), tokens) == (text, reason)


def test_a_stop_token_is_text_where_it_is_not_trimmed_and_nothing_where_it_is_ignored() -> None:
    shown = sequence(params=SamplingParams(no_stop_trim=True))
    assert answer(shown, "a!") == ("a!", FinishReason(type="stop", matched=STOP_TOKEN))
    assert answer(sequence(params=SamplingParams(ignore_eos=True)), "a!b") == ("a!b", None)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ("a}", FinishReason(type="stop", matched=ord("}"))),
        ("abc}", FinishReason(type="length", length=4)),
        ("abc.", FinishReason(type="length", length=4)),
        ("abcd", FinishReason(type="length", length=4, incomplete=True)),
    ],
)
def test_a_grammar_ends_an_answer_or_says_that_it_is_incomplete(tokens: str, reason: FinishReason) -> None:
    assert answer(sequence(matcher=Grammar(whole="}", ends=".")), tokens)[1] == reason


def test_what_the_answer_begins_with_comes_with_the_first_token() -> None:
    assert answer(sequence(prefix_text="so "), "ab") == ("so ab", None)


def test_an_output_says_whose_it_is_and_how_far_it_got() -> None:
    s = sequence(shows_prompt_ids=True, prompt_text="hi", cached_tokens=1)
    first = s.output(s.append(ord("a")), [ord("a")])
    assert (first.rid, first.index, first.text, list(first.token_ids)) == ("r", 3, "a", [ord("a")])
    assert (first.prompt_tokens, first.completion_tokens, first.cached_tokens) == (2, 1, 1)
    assert (first.prompt_text, list(first.prompt_ids)) == ("hi", [ord("h"), ord("i")])
    second = s.output(s.append(ord("b")), [ord("b")])
    assert (second.text, second.completion_tokens, second.prompt_text, list(second.prompt_ids)) == ("b", 2, None, [])
    unasked = sequence()
    assert list(unasked.output(unasked.append(ord("a")), [ord("a")]).prompt_ids) == []


def test_an_awaited_token_counts_and_stands_as_its_row() -> None:
    s = sequence("abc")
    s.awaited, s.num_computed = 5, 2
    assert (len(s), s.num_output, s.num_uncomputed) == (4, 0, 2)
    assert s.next_ids(1) == [ord("c")]
    assert s.next_ids(2) == [ord("c"), -6]


@pytest.mark.parametrize(
    ("changes", "cacheable"),
    [
        ({}, 9),
        ({"logprobs": LogprobOptions()}, 9),
        ({"logprobs": LogprobOptions(start=4)}, 4),
        ({"logprobs": LogprobOptions(start=0)}, 0),
        ({"logprobs": LogprobOptions(start=9)}, 9),
        ({"tensors": TensorOptions(last_hidden_state=True)}, 9),
        ({"tensors": TensorOptions(routed_experts=3), "num_routed": 3}, 3),
    ],
)
def test_what_is_asked_of_the_prompt_does_not_come_from_the_cache(changes: dict[str, Any], cacheable: int) -> None:
    assert sequence("0123456789", **changes).num_cacheable == cacheable


def test_a_prompt_whose_scores_are_asked_for_goes_in_small_chunks_until_they_are_given() -> None:
    s = sequence("x" * 200, logprobs=LogprobOptions(start=0))
    assert s.max_chunk == LOGPROB_CHUNK
    s.prompt_logprobs = [None] * 200
    assert s.next_logprob_row == 199
    assert s.max_chunk == 200
    assert sequence("x" * 200, logprobs=LogprobOptions()).max_chunk == 200
