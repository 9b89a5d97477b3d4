"""Room for what is under way at once: so many things, and so much of them. Knows nothing of what they are."""

from __future__ import annotations

import threading
from typing import Any

#: Characters of what is worth a thread's waking.
LARGE = 2**16


class Room:
    """Taken by one thread, given back by another. One thing alone always has room, however large it is."""

    def __init__(self, most: int, several: int, most_characters: int) -> None:
        """Who waits is woken when there is room for `several` things, as each time takes longer than a small one."""
        self._most = most
        self._few = most - several
        self._most_characters = most_characters
        self._things = self._characters = 0
        self._changed = threading.Condition()

    def take(self, characters: int, seconds: float) -> bool:
        """Whether there is room for one thing more, within so many seconds."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._has(characters), seconds)
            if there:
                self._things += 1
                self._characters += characters
            return there

    def give_back(self, characters: int) -> None:
        """One thing is gone."""
        with self._changed:
            self._things -= 1
            self._characters -= characters
            if self._things <= self._few or characters >= LARGE:
                self._changed.notify()

    def _has(self, characters: int) -> bool:
        fits = self._things < self._most and self._characters + characters <= self._most_characters
        return fits or not self._things


def characters_in(value: Any) -> int:
    """Those of all texts in lists and dicts."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(map(characters_in, value)) if hasattr(value, "__iter__") else 0
