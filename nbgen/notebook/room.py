"""A limit on how many things are in progress at once, and on their size. Knows nothing of what they are."""

from __future__ import annotations

import threading
from typing import Any

#: A thing of so many characters wakes the waiting thread by itself when it is given back.
LARGE = 2**16


class Room:
    """One thread takes room, another gives it back. One thing alone always has room, however large it is."""

    def __init__(self, most: int, several: int, most_characters: int) -> None:
        """The waiting thread is woken when there is room for `several` things: waking costs more than a small one."""
        self._most = most
        self._few = most - several
        self._most_characters = most_characters
        self._things = self._characters = 0
        self._changed = threading.Condition()

    def take(self, characters: int, seconds: float) -> bool:
        """Take room for one more thing, waiting so many seconds at most. Returns whether there was room."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._has(characters), seconds)
            if there:
                self._things += 1
                self._characters += characters
            return there

    def give_back(self, characters: int) -> None:
        """Give back the room of one thing."""
        with self._changed:
            self._things -= 1
            self._characters -= characters
            if self._things <= self._few or characters >= LARGE:
                self._changed.notify()

    def _has(self, characters: int) -> bool:
        fits = self._things < self._most and self._characters + characters <= self._most_characters
        return fits or not self._things


def characters_in(value: Any) -> int:
    """The number of characters of all texts in lists and dicts, at any depth."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(map(characters_in, value)) if hasattr(value, "__iter__") else 0
