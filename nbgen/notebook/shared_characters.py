"""Finds which token completes each character that several tokens share; the character counts as that token's text.

Decodes longer and longer beginnings of a run of such tokens. Knows nothing of how ids become text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

#: The replacement character, decoded from bytes that are no whole character.
BROKEN = "\ufffd"
#: Most beginnings of a run that are decoded in one call, at first.
WINDOW = 32

#: Decodes lists of ids to their texts.
Decode = Callable[[list[list[int]]], list[str]]


def completed(runs: list[list[int]], decode: Decode) -> list[list[str]]:
    """For each run, the text that each of its tokens completes. Joined, they are the run's text."""
    found = [Run(ids) for ids in runs]
    while open_runs := [run for run in found if run.rest]:
        asked = [run.beginnings() for run in open_runs]
        texts = iter(decode([ids for beginnings in asked for ids in beginnings]))
        for run, beginnings in zip(open_runs, asked, strict=True):
            run.read([next(texts) for _ in beginnings])
    return [run.pieces for run in found]


class Run:
    """Adjacent tokens that are parts of characters. `rest` are those whose text is not known yet."""

    def __init__(self, ids: list[int]) -> None:
        self.rest = ids
        self.pieces: list[str] = []
        self._window = WINDOW

    def beginnings(self) -> list[list[int]]:
        """The beginnings of the rest: one token, two, and so on up to the window."""
        return [self.rest[:count] for count in range(1, min(self._window, len(self.rest)) + 1)]

    def read(self, texts: list[str]) -> None:
        """Take the texts of the beginnings, up to the last that ends in a whole character, as that text is final."""
        whole = [place for place, text in enumerate(texts) if not text.endswith(BROKEN)]
        if whole:
            texts = texts[: whole[-1] + 1]
        elif len(texts) < len(self.rest):
            self._window *= 2
            return
        text = texts[-1]
        ends = accumulate((len(each.rstrip(BROKEN)) for each in texts[:-1]), max, initial=0)
        self.pieces += [text[start:end] for start, end in pairwise([*ends, len(text)])]
        self.rest = self.rest[len(texts) :]
