"""How a sequence ends, in which order it looks, and what it tells of itself."""

from typing import Any

import pytest

from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.sequence import LOGPROB_CHUNK, Sequence
from nbgen.engine.stop_regex import StopRegexes
from nbgen.messages import FinishReason, LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.engine.test_detokenizer import decode_fallback

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


@pytest.mark.parametrize(
    ("tokens", "stops", "regexes", "text", "matched"),
    [
        ("bc\n", ("\n",), (), "bc", "\n"),
        ("bc\n", ("d", "\n"), (), "bc", "\n"),
        ("bc\n\n", ("\n\n",), (), "bc", "\n\n"),
        ("bc\n", (), (r"\s",), "bc\n", r"\s"),
        ("b\nc", (), (r"\nc",), "b\nc", r"\nc"),
        ("bé", ("é",), (), "b", "é"),
        ("b\n€", (), (r"\W{2}",), "b\n€", r"\W{2}"),
    ],
)
@pytest.mark.parametrize("spare", [0, 1])
def test_a_stop_in_raw_bytes_ends_it_with_their_last(
    tokens: str, stops: tuple[str, ...], regexes: tuple[str, ...], text: str, matched: str, spare: int
) -> None:
    s = fallback_sequence(stops, regexes, budget=sum(map(len, tokens_of(tokens))) + spare)
    shown = ""
    for token in [token for each in tokens_of(tokens) for token in each]:
        assert s.finish_reason is None
        shown += s.append(token)
    assert (shown, s.finish_reason) == (text, FinishReason(type="stop", matched=matched))


def test_bytes_that_are_no_stop_are_shown_once_they_are_certain() -> None:
    s = fallback_sequence(("\n\n",), (r"\n\s*\n",), budget=9)
    shown = [s.append(token) for each in tokens_of("b\n€c") for token in each]
    assert shown == ["b", "", "", "", "", "\n€c"]


@pytest.mark.parametrize("budget", [2, 3])
def test_a_stop_before_half_a_character_ends_it_with_its_token(budget: int) -> None:
    pieces = ["a", "\n\ufffd"]
    text = Detokenizer(lambda ids: "".join(pieces[token] for token in ids), lambda _: False, [])
    s = Sequence("r", 0, [0], SamplingParams(), budget, 0, text, StopStrings(("\n",)))
    assert s.append(0) + s.append(1) == "a"
    assert s.finish_reason == FinishReason(type="stop", matched="\n")


def test_a_regex_for_the_end_sees_no_half_of_a_character() -> None:
    pieces = [b"a", b" \xe2\x80", b"\x9c"]
    text = Detokenizer(lambda ids: b"".join(map(pieces.__getitem__, ids)).decode(errors="replace"), lambda _: False, [])
    s = Sequence("r", 0, [0], SamplingParams(), 9, 0, text, StopStrings((), regexes=StopRegexes([r"\s$"])))
    assert s.append(0) + s.append(1) == "a "
    assert s.finish_reason == FinishReason(type="stop", matched=r"\s$")


@pytest.mark.parametrize(
    ("stops", "tokens", "text", "matched"),
    [
        (("<|turn|>",), "a#", "a", "<|turn|>"),
        (("turn",), "a#", "a", "turn"),
        (("x", "b<|turn|>"), "ab#", "ab", "b<|turn|>"),
        (("|", "a"), "a#", "", "a"),
        (("<",), "a!", "a", STOP_TOKEN),
        (("<|turn|>bc",), "a#bcd", "abc", "<|turn|>bc"),
        (("a<|turn|>b",), "a#b", "ab", "a<|turn|>b"),
        (("<|turn|><|turn|>b",), "##bc", "b", "<|turn|><|turn|>b"),
        (("<|turn|>b<|turn|>",), "#b#c", "b", "<|turn|>b<|turn|>"),
        (("|>b", "bc"), "a#bc", "ab", "|>b"),
        (("ab",), "a#bc", "", "ab"),
        (("<|turn|>bcdefgh",), "#b#bcdefghi", "bbcdefgh", "<|turn|>bcdefgh"),
        (("|>b",), "#abcdefgb!", "abcdefgb", STOP_TOKEN),
    ],
)
def test_a_stop_may_be_in_what_the_text_leaves_out(
    stops: tuple[str, ...], tokens: str, text: str, matched: str | int
) -> None:
    left_out = {ord("#"): "<|turn|>", STOP_TOKEN: "<|end|>"}
    s = sequence(stops=stops, left_out=left_out, budget=12)
    s.detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), lambda _: False, s.prompt_ids, left_out)
    shown = ""
    for token in map(ord, tokens):
        if s.finish_reason is None:
            shown += s.append(token)
    assert (shown, s.finish_reason) == (text, FinishReason(type="stop", matched=matched))


@pytest.mark.parametrize(
    ("pattern", "tokens", "matched"),
    [
        (r"turn\|>b+c", "a#bbc", True),
        (r"a<.turn.>(<.turn.>)?b", "a##b", True),
        (r"^a?<.*>$", "a#b", True),
        (r"ab", "a#b", False),
        (r"a<.turn.>c", "ab#c", False),
    ],
)
def test_a_regex_may_begin_in_what_the_text_leaves_out(pattern: str, tokens: str, matched: bool) -> None:
    left_out = {ord("#"): "<|turn|>"}
    s = sequence(left_out=left_out, budget=len(tokens))
    s.stop_strings = StopStrings((), regexes=StopRegexes([pattern]))
    s.detokenizer = Detokenizer(lambda ids: "".join(map(chr, ids)), lambda _: False, s.prompt_ids, left_out)
    shown = "".join(s.append(ord(token)) for token in tokens if s.finish_reason is None)
    reason = FinishReason(type="stop", matched=pattern) if matched else FinishReason(type="length", length=len(tokens))
    assert (shown, s.finish_reason) == (tokens.replace("#", "")[: len(shown)], reason)


def tokens_of(text: str) -> list[list[int]]:
    """Of a vocabulary that has letters from b on, and bytes for all else."""
    return [[256 + ord(c) - ord("a")] if c.isascii() and c.isalpha() else list(c.encode()) for c in text]


def fallback_sequence(stops: tuple[str, ...], regexes: tuple[str, ...], budget: int) -> Sequence:
    text = Detokenizer(decode_fallback, lambda token: token < 256, [])
    strings = StopStrings(stops, regexes=StopRegexes(regexes) if regexes else None)
    return Sequence("r", 0, [300], SamplingParams(), budget, 0, text, strings)


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


@pytest.mark.parametrize(("keeps", "text"), [(False, "a"), (True, "a!")])
def test_the_end_of_a_grammar_is_no_text_where_ends_are_ignored(keeps: bool, text: str) -> None:
    params = SamplingParams(ignore_eos=True, no_stop_trim=keeps)
    expected = (text, FinishReason(type="stop", matched=STOP_TOKEN))
    assert answer(sequence(matcher=Grammar(whole="!"), params=params), "a!") == expected


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


def test_what_is_before_the_scores_that_are_asked_for_goes_with_the_first_of_them() -> None:
    s = sequence("x" * 400, logprobs=LogprobOptions(start=300))
    assert s.max_chunk == 300 + LOGPROB_CHUNK
    s.num_computed, s.prompt_logprobs = s.max_chunk, [None] * (LOGPROB_CHUNK + 1)
    assert s.max_chunk == LOGPROB_CHUNK
