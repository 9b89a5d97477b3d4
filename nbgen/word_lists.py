"""Words that a request forbids, or that end its answer, as text or as token ids. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest

MAX_WORDS = 256
MAX_WORD_BYTES = 1024


class WordLists(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words that an answer never has, `bad` as text and `bad_ids` as token ids, and `stop_ids`, which end it.

    If one token completes several stop strings, the first in the text counts; with `in_order`, the first in the list.
    """

    bad: list[str] = []
    bad_ids: list[list[int]] = []
    stop_ids: list[list[int]] = []
    in_order: bool = False


def checked_words(given: Sequence[Any]) -> list[str]:
    """The words that are not empty. Raises InvalidRequest for too many, for long ones, and for what is no text."""
    words = [word for word in given if word != ""]
    if not all(isinstance(word, str) for word in words) or len(words) > MAX_WORDS:
        raise InvalidRequest(f"bad_words must be at most {MAX_WORDS} texts", field="bad_words")
    if (longest := max((len(word.encode("utf-8", "replace")) for word in words), default=0)) > MAX_WORD_BYTES:
        raise InvalidRequest(
            f"a word of bad_words has {longest} bytes; at most {MAX_WORD_BYTES}",
            field="bad_words",
        )
    return words
