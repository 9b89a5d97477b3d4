"""Streamed text never shows half of anything, and in the end is all of it."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbgen.engine.detokenizer import CONTEXT_TOKENS, MAX_HELD_TOKENS, Detokenizer, StopStrings
from nbgen.engine.tokenizer import Tokenizer
from tests.conftest import save_tokenizer


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


#: The bytes of a character.
CHARACTERS = st.sampled_from("a\u00e9\u0f40\U0001f600").map(lambda character: list(character.encode()))


@given(st.lists(st.one_of(CHARACTERS, st.integers(0, 255).map(lambda byte: [byte])), max_size=40))
def test_a_token_begins_where_it_stands_in_the_text(characters: list[list[int]]) -> None:
    ids = [byte for character in characters for byte in character]
    detokenizer, places = Detokenizer(decode_bytes, lambda _: False, []), []
    for token in ids:
        places.append(detokenizer.place(token))
        detokenizer.append(token)
    assert places == [len(decode_bytes(ids[: end + 1])) - 1 for end in range(len(ids))]


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [detokenizer.append(token) for token in ids] + [detokenizer.flush()]


@given(st.text(max_size=40))
def test_text_arrives_whole_characters_at_a_time(text: str) -> None:
    pieces = stream(Detokenizer(decode_bytes, lambda _: False, []), list(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces[:-1] if "\ufffd" not in text)


@given(st.lists(st.integers(0, 300).map(lambda token: [token]) | CHARACTERS, max_size=60))
@example([list("\u0f40".encode())] * MAX_HELD_TOKENS)
@example([[0]] * 21 + [[128], [256], *[list("\U0001f600".encode())] * 2, [128]])
def test_byte_fallback_never_retracts(parts: list[list[int]]) -> None:
    ids = [token for part in parts for token in part]
    pieces = stream(Detokenizer(decode_fallback, lambda token: token < 256, []), ids)
    spoilt_long = any(len(run) >= MAX_HELD_TOKENS and "\ufffd" in decode_fallback(run) for run in _runs(ids))
    assert spoilt_long or "".join(pieces) == decode_fallback(ids)


@given(st.lists(st.integers(0, 300), max_size=60), st.sets(st.integers(0, 60)))
@example([97, 255], {1})
def test_what_is_skipped_does_not_part_bytes(ids: list[int], places: set[int]) -> None:
    def shown(tokens: list[int]) -> str:
        return "".join(stream(Detokenizer(decode_fallback, lambda token: 0 <= token < 256, [], {-1}), tokens))

    parted = [token for place, each in enumerate(ids) for token in ((-1, each) if place in places else (each,))]
    assert shown(parted) == shown(ids)


def _runs(ids: list[int]) -> list[list[int]]:
    """Raw bytes, and what has no text, between letters."""
    runs: list[list[int]] = [[]]
    for token in ids:
        runs.append([]) if token > 256 else runs[-1].append(token)
    return runs


@given(st.lists(CHARACTERS, min_size=1, max_size=60), st.integers(0, 60))
@example([list("a\U0001f600\U0001f600".encode())], 9)
def test_whatever_bytes_a_prompt_ends_with_its_own_characters_are_not_shown(parts: list[list[int]], cut: int) -> None:
    ids = [token for part in parts for token in part]
    pieces = stream(Detokenizer(decode_fallback, lambda token: token < 256, ids[:cut]), ids[cut:])
    assert "".join(pieces) == bytes(ids).decode()[len(bytes(ids[:cut]).decode(errors="ignore")) :]


def test_invalid_bytes_are_not_held_for_ever() -> None:
    detokenizer = Detokenizer(decode_bytes, lambda _: False, [])
    pieces = [detokenizer.append(0xFF) for _ in range(MAX_HELD_TOKENS + 1)]
    assert "".join(pieces), "after so many tokens something is shown"


def test_the_prompt_gives_context_and_is_not_shown() -> None:
    detokenizer = Detokenizer(decode_bytes, lambda _: False, list(b"caf\xc3"))
    assert detokenizer.append(0xA9) == "é"
    plain = Detokenizer(decode_bytes, lambda _: False, list(b"hello"))
    assert plain.append(ord("!")) == "!"


def byte_level(folder: Path) -> PreTrainedTokenizerBase:
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def byte_fallback(folder: Path) -> PreTrainedTokenizerBase:
    """Letters, a space before a word, and bytes for all else."""
    pieces = ["<unk>", "</s>", "\u2581", "\u2581a", "a", "b", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocab, merges=[("\u2581", "a")], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    spaces = decoders.Replace("\u2581", " ")
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def word_pieces(folder: Path) -> PreTrainedTokenizerBase:
    vocab = {piece: index for index, piece in enumerate(["[UNK]", "[SEP]", "a", "b", "##a", "##b"])}
    backend = Backend(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[SEP]", unk_token="[UNK]")


@pytest.fixture(scope="module", params=[byte_level, byte_fallback, word_pieces, lambda _: ByT5Tokenizer()])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pretrained = request.param(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer(pretrained, {pretrained.eos_token_id}, 512)


@given(
    text=st.text("ab é🙂", max_size=12),
    ends=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 90)), max_size=3),
    before=st.sampled_from([0, 1, 20]),
)
@example(text=" a b", ends=[], before=20)
def test_skipped_tokens_change_nothing_wherever_they_stand(
    tokenizer: Tokenizer, text: str, ends: list[tuple[int, int]], before: int
) -> None:
    prompt, ids = (tokenizer.encode(part, add_special_tokens=False) for part in ("a b", text))
    prompt += [tokenizer.pretrained.eos_token_id] * before
    for place, count in ends:
        ids[place:place] = [tokenizer.pretrained.eos_token_id] * count
    for skips in (True, False):
        decode = tokenizer.decoder(skip_special_tokens=skips, spaces_between=True)
        skipped = tokenizer.skipped.keys() if skips else ()
        pieces = stream(Detokenizer(decode, tokenizer.is_byte, prompt, skipped), ids)
        assert "".join(pieces) == decode(prompt + ids)[len(decode(prompt)) :]


@pytest.mark.parametrize(("token", "skipped"), [(0x80, {0x80}), (0x80, set())])
def test_tokens_without_text_cost_the_same_however_many_they_are(token: int, skipped: set[int]) -> None:
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return bytes(ids).decode("utf-8", "ignore")

    detokenizer = Detokenizer(decode, lambda _: False, list(b"hello"), skipped)
    pieces = [detokenizer.append(token) for token in [token] * 500 + list("né".encode())]
    assert "".join(pieces) == "né"
    assert max(lengths) <= MAX_HELD_TOKENS + 2 * CONTEXT_TOKENS


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


@pytest.mark.parametrize(
    ("stops", "in_order", "shown"),
    [
        (("r", "e"), False, " th"),
        (("r", "e"), True, " the"),
        (("e", "r"), True, " th"),
        (("other", "the", "t"), False, " "),
    ],
)
def test_of_several_stop_strings_in_a_token_one_counts(stops: tuple[str, ...], in_order: bool, shown: str) -> None:
    strings = StopStrings(stops, in_order=in_order)
    assert strings.append(" there") == shown


def test_an_empty_stop_string_matches_at_once() -> None:
    stops = StopStrings(("",))
    assert stops.append("anything") == ""
    assert stops.matched == ""
