"""Streamed text never shows half of anything, and in the end is all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.detokenizer import MAX_HELD_TOKENS, Detokenizer, StopStrings


def decode_bytes(ids: list[int]) -> str:
    """A byte-level vocabulary: each id is a byte."""
    return bytes(ids).decode("utf-8", "replace")


def decode_fallback(ids: list[int]) -> str:
    """A vocabulary where 0 to 255 are raw bytes, of which one invalid spoils its whole run; others are letters."""
    text, run = "", []
    for token in [*ids, 256]:
        if token < 256:
            run.append(token)
            continue
        try:
            text += bytes(run).decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = []
        text += chr(token - 256 + ord("a")) if token > 256 else ""
    return text


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [detokenizer.append(token) for token in ids] + [detokenizer.flush()]


@given(st.text(max_size=40))
def test_text_arrives_whole_characters_at_a_time(text: str) -> None:
    pieces = stream(Detokenizer(decode_bytes, lambda _: False, []), list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces[:-1] if "\ufffd" not in text)


@given(st.lists(st.integers(0, 300), max_size=60))
def test_byte_fallback_never_retracts(ids: list[int]) -> None:
    pieces = stream(Detokenizer(decode_fallback, lambda token: token < 256, []), ids)
    held_long = any(len(run) >= MAX_HELD_TOKENS for run in _runs(ids))
    assert held_long or "".join(pieces) == decode_fallback(ids)


def _runs(ids: list[int]) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    for token in ids:
        runs.append([]) if token >= 256 else runs[-1].append(token)
    return runs


def test_invalid_bytes_are_not_held_for_ever() -> None:
    detokenizer = Detokenizer(decode_bytes, lambda _: False, [])
    pieces = [detokenizer.append(0xFF) for _ in range(MAX_HELD_TOKENS + 1)]
    assert "".join(pieces), "after so many tokens something is shown"


def test_the_prompt_gives_context_and_is_not_shown() -> None:
    detokenizer = Detokenizer(decode_bytes, lambda _: False, list(b"caf\xc3"))
    assert detokenizer.append(0xA9) == "é"
    plain = Detokenizer(decode_bytes, lambda _: False, list(b"hello"))
    assert plain.append(ord("!")) == "!"


@pytest.mark.parametrize(("keep", "shown"), [(False, "one "), (True, "one STOP")])
def test_a_stop_string_split_over_pieces(keep: bool, shown: str) -> None:
    stops = StopStrings(("STOP",), keep_match=keep)
    pieces = [stops.append(piece) for piece in ("one S", "T", "OP two")]
    assert "".join(pieces) == shown
    assert stops.matched == "STOP"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_nothing_of_a_stop_string_is_shown_before_it_is_decided(text: str, stop: list[str]) -> None:
    stops, shown = StopStrings(stop), ""
    for letter in text:
        shown += stops.append(letter)
        if stops.matched:
            break
    if stops.matched:
        assert not any(s in shown for s in stop)
        assert (shown + stops.matched) == text[: len(shown) + len(stops.matched)]
    else:
        assert shown + stops.flush() == text


def test_an_empty_stop_string_matches_at_once() -> None:
    stops = StopStrings(("",))
    assert stops.append("anything") == ""
    assert stops.matched == ""
