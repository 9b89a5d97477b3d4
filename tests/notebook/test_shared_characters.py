"""Characters that tokens share, by how libraries decode beginnings of them."""

from itertools import pairwise

import pytest

from nbgen.notebook.shared_characters import WINDOW, completed


class Tokens:
    """A vocabulary of byte strings; ids are places in it."""

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = tokens
        self.ids = list(range(len(tokens)))

    def decode(self, lists: list[list[int]]) -> list[str]:
        return [b"".join(self.tokens[id] for id in ids).decode("utf-8", "replace") for ids in lists]

    def fall_back(self, lists: list[list[int]]) -> list[str]:
        """As sentencepiece's bytes: a run of them that is no text is broken as a whole."""
        texts = self.decode(lists)
        return ["\ufffd" * len(ids) if "\ufffd" in text else text for ids, text in zip(lists, texts, strict=True)]


def single(text: str) -> Tokens:
    return Tokens(*(bytes([byte]) for byte in text.encode()))


@pytest.mark.parametrize("library", [Tokens.decode, Tokens.fall_back])
def test_single_bytes_complete_a_character_with_the_last_of_them(library) -> None:
    tokens = single("é日🦊")
    decode = library.__get__(tokens)
    assert completed([tokens.ids], decode) == [["", "é", "", "", "日", "", "", "", "🦊"]]
    assert completed([tokens.ids[:2], tokens.ids[2:5]], decode) == [["", "é"], ["", "", "日"]]
    assert completed([], decode) == []


def test_tokens_across_characters_complete_one_each() -> None:
    assert completed([[0, 1, 2]], Tokens("日".encode()[:2], "日本".encode()[2:5], "本".encode()[2:]).decode) == [
        ["", "日", "本"]
    ]


def test_what_is_no_text_stands_at_the_end_as_it_is_decoded() -> None:
    assert completed([[0, 1, 2]], Tokens(b"\xc3", b"\xa9", b"\xff").decode) == [["", "é", "\ufffd"]]
    (pieces,) = completed([[0, 1]], Tokens(b"\xff", b"\xfe").decode)
    assert "".join(pieces) == "\ufffd\ufffd"


def test_a_long_run_is_asked_about_piece_by_piece() -> None:
    tokens, text = single("日本語" * 50), "日本語" * 50
    asked: list[int] = []

    def decode(lists: list[list[int]]) -> list[str]:
        asked.append(max(map(len, lists)))
        return tokens.decode(lists)

    (pieces,) = completed([tokens.ids], decode)
    assert pieces[2::3] == list(text)
    assert max(asked) <= WINDOW


def test_a_run_that_is_long_not_whole_is_looked_at_further() -> None:
    text = "日" * 80
    data = text.encode()
    cuts = [0, *range(2, len(data), 3), len(data)]  # but for the last, every token ends inside a character
    tokens = Tokens(*(data[start:end] for start, end in pairwise(cuts)))
    assert completed([tokens.ids], tokens.decode) == [["", *text]]
