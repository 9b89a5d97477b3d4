"""Counts how often each token occurs in a growing output. Knows neither sequences nor tensors."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np


class TokenCounts:
    """Counts that are read at every step. Adding a token costs little, however many there are."""

    def __init__(self) -> None:
        #: How many tokens have been counted.
        self.total = 0
        self._ids, self._counts = array("q"), array("q")

    def add(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            place = bisect_left(self._ids, token)
            if place == len(self._ids) or self._ids[place] != token:
                self._ids.insert(place, token)
                self._counts.insert(place, 0)
            self._counts[place] += 1
            self.total += 1

    def copy(self) -> "TokenCounts":
        """A copy that can be counted on independently."""
        copied = TokenCounts()
        copied.total, copied._ids, copied._counts = self.total, self._ids[:], self._counts[:]
        return copied

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct tokens in ascending order, and how often each occurs."""
        return np.array(self._ids), np.array(self._counts)
