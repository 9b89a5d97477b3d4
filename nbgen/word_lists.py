"""Words that a request forbids, or that end its answer, as text or as token ids. Knows no tokenizer."""

from __future__ import annotations

import msgspec


class WordLists(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words that an answer never has, `bad` as text and `bad_ids` as token ids, and `stop_ids`, which end it."""

    bad: list[str] = []
    bad_ids: list[list[int]] = []
    stop_ids: list[list[int]] = []
