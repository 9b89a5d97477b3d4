"""Stop regexes: Python's syntax, linear time, shown unless their own text stands there."""

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.detokenizer import StopStrings
from nbgen.engine.stop_regex import FOR_EACH_PIECE, SAVED_UP, TAIL, Patience, StopRegexes
from nbgen.errors import InvalidRequest

PARTS = [
    r"\b",
    r"\B",
    "^",
    "a",
    "é",
    ".",
    r"\s",
    r"\S?",
    r"\w{,2}",
    r"\W",
    r"\D",
    r"[^\W_]",
    r"[\S]",
    "(?:a|é)",
    "(?#x)",
]


def feed(
    pieces: list[str], patterns: list[str], stops: list[str] = (), *, keep: bool = False
) -> tuple[str, str | None]:
    """What is shown of the pieces, and what matched."""
    strings = StopStrings(stops, keep_match=keep, regexes=StopRegexes(patterns))
    shown = ""
    for piece in pieces:
        shown += strings.append(piece)
        if strings.matched is not None:
            return shown, strings.matched
    return shown + strings.flush(), None


@pytest.mark.parametrize(
    ("pieces", "pattern", "shown"),
    [
        (["one", " and", " two"], "and|or", "one and"),
        (["It is", " done", ". ", "More"], r"[.!?]\s*$", "It is done. "),
        (["a.\n", "b"], r"\.$", "a.\n"),
        (["ab", "cd"], r"b\Z", "ab"),
        (["xé", "1", " y"], r"\w\d", "xé1"),
        (["café", "s!"], r"\w+!", "cafés!"),
        (["abc", "ABC"], r"(?i)CA", "abcABC"),
        (["a\nb", "x"], r"(?m)^b$", "a\nb"),
        (["am\n"], r"(?i)M$", "am\n"),
        (["am\n"], r"(m)$", "am\n"),
        (["cost: $", "5"], r"[$]", "cost: $"),
        (["x", "\u0663", "y"], r"x[\d]", "x\u0663"),
        (["xé", "y"], r"x[\w]", "xé"),
        (["a\u00a0", "b"], r"a\sb", "a\u00a0b"),
        (["a.\u2028", "b"], r"\.[\s]", "a.\u2028"),
        (["\u00a0é", "b"], r"[\S]", "\u00a0é"),
        (["\u0663x", "y"], r"\D", "\u0663x"),
        (["é.", "y"], r"[\W]", "é."),
        (["_1é", "y"], r"[^\W\d_]", "_1é"),
        (["caab", "y"], r"ca{,2}b", "caab"),
        (["a{,2b", "y"], r"[a]{,2b", "a{,2b"),
        (["b", "an"], r"\u0061[\u006d-\U0000006e]", "ban"),
        (["a b", "y"], r"(?x) a [ ] b  # both", "a b"),
        (["a b", "ab"], r"(?x)a b", "a bab"),
        (["ab", "y"], r"a(?#then)b", "ab"),
        (["x]", "y"], r"[[:x]\]", "x]"),
        (["b", "ab"], r"^a", "bab"),
    ],
)
def test_what_matches_is_shown(pieces: list[str], pattern: str, shown: str) -> None:
    text, matched = feed(pieces, [pattern])
    assert text == shown
    assert matched == (None if pattern == "^a" else pattern)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("fin été!", r"\bété\b"),
        ("l'été", r"\bété"),
        ("été 2", r"t\Bé\b"),
        ("日本。", r"本\b"),
        ("caféine caf.", r"caf\b"),
        ("\né", r"(?m)^\bé$"),
        ("É", r"(?i)\bé\b"),
    ],
)
def test_boundaries_are_those_of_all_words(text: str, pattern: str) -> None:
    for size in (1, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert feed([*pieces, "-"], [pattern])[1] == pattern


def test_there_is_no_boundary_inside_of_a_word() -> None:
    pieces = ["caféine é", "été x"]
    assert feed(pieces, [r"caf\b", r"\bine", r"\bt", r"é\Bx", r"é\b\S"])[1] is None
    assert feed(["café" * TAIL, "ine "], [r"\bine"])[1] is None
    assert feed(["é " * TAIL, "ine "], [r"\bine\b"])[1] == r"\bine\b"


@given(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=5), st.text(alphabet="aé_ .1日\u00a0", min_size=1, max_size=5)
)
def test_what_python_finds_is_found(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    assert (StopRegexes([pattern]).append(text) is not None) == (re.search(pattern, text) is not None)


def test_a_pattern_that_is_its_own_text_is_trimmed_like_a_stop_string() -> None:
    assert feed(["one E", "ND two"], ["END"]) == ("one ", "END")
    assert feed(["one E", "ND two"], ["END"], keep=True) == ("one END", "END")


def test_strings_come_before_regexes() -> None:
    assert feed(["abc"], ["b"], ["c"]) == ("ab", "c")


def test_a_match_may_lie_across_pieces_but_not_across_the_tail() -> None:
    assert feed(["x" * TAIL, "ye", "s"], ["yes"])[1] == "yes"
    assert feed(["begin" + "x" * 2 * TAIL, "end"], ["^begin.*end"])[1] is None
    assert feed(["y" + "x" * 2 * TAIL, "x"], [r"^x"])[1] is None, "the tail's beginning is not the text's"


def test_catastrophic_patterns_take_linear_time() -> None:
    regexes = StopRegexes(["(a+)+b", "(a|a)*c"])
    started = time.process_time()
    for _ in range(500):
        assert regexes.append("a" * 20) is None
    assert time.process_time() - started < 2


def test_what_is_found_once_is_remembered_of_usual_patterns() -> None:
    text = random.Random(0).choices("abcdef ghi é日\n.,", k=TAIL)
    regexes = StopRegexes([rf"(\w+\W+){{{count}}}Z" for count in range(1, 6)] + [r"(?i)\b\w+\s+\w+\s+stop$"])
    assert [regexes.append(letter) for letter in text] == [None] * TAIL


def test_patterns_that_take_too_long_are_refused_with_words() -> None:
    regexes, letters = StopRegexes([f"[ab]*a[ab]{{{40 + i}}}c" for i in range(8)]), random.Random(0)
    pieces = ("".join(letters.choices("ab", k=TAIL)) for _ in range(1000))
    with pytest.raises(InvalidRequest, match="stop_regex takes too long"):
        list(map(regexes.append, pieces))


def test_patience_is_saved_up_to_a_limit() -> None:
    patience = Patience()
    patience.spend(SAVED_UP)
    patience.spend(FOR_EACH_PIECE)
    with pytest.raises(InvalidRequest, match=r"more than 0\.5 ms for a token"):
        patience.spend(3 * FOR_EACH_PIECE)
    patience = Patience()
    for _ in range(1000):
        patience.spend(0)
    with pytest.raises(InvalidRequest, match="takes too long"):
        patience.spend(SAVED_UP + 2 * FOR_EACH_PIECE)


def test_samples_have_texts_of_their_own_and_one_patience() -> None:
    first = StopRegexes(["ab"])
    assert first.append("a") is None
    second = first.again()
    assert second.append("b") is None
    assert first.append("b") == "ab"
    slow, letters = StopRegexes([f"[ab]*a[ab]{{{40 + i}}}c" for i in range(8)]), random.Random(0)
    pieces = ("".join(letters.choices("ab", k=TAIL)) for _ in range(1000))
    with pytest.raises(InvalidRequest, match="stop_regex takes too long"):
        [slow.again().append(piece) for piece in pieces]


def test_a_refusal_says_what_is_not_known() -> None:
    with pytest.raises(InvalidRequest, match=r"invalid perl operator: \(\?x"):
        StopRegexes(["(?x: a)"])


@pytest.mark.parametrize(
    "pattern", ["(", r"(a)\1", "(?=a)b", "(?<!a)b", "a++", "((a{100}){100}){100}", "(?P<x>a)(?P=x)"]
)
def test_what_needs_backtracking_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="linear time"):
        StopRegexes([pattern])


def test_many_patterns_are_matched_in_the_memory_of_a_few() -> None:
    words = [rf"\b[Ee]nd{number}[.!?]\s*$" for number in range(32)]
    assert feed(["some text ", "End31", ". "], words) == ("some text End31. ", words[31])
