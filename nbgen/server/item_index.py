"""The items of responses and conversations, found by id, and their size. Does not know who keeps them, nor how long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from nbgen.protocols.responses_items import Item, json_size


class ItemIndex:
    """Items by id, each with its holder's id. If several holders have an item of one id, the last to come counts."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[str, Item], ...]] = {}

    def add(self, holder: str, items: Iterable[Item]) -> None:
        """Add a holder's items, each with an id of its own."""
        for item in items:
            self._found[item["id"]] = (*self._found.get(item["id"], ()), (holder, item))

    def remove(self, holder: str, items: Iterable[Item]) -> None:
        """Remove a holder's items."""
        for item in items:
            left = tuple(each for each in self._found.pop(item["id"], ()) if each[0] != holder)
            if left:
                self._found[item["id"]] = left

    def find(self, id: str) -> Item | None:
        """The item of this id, if there is one."""
        found = self._found.get(id)
        return found[-1][1] if found else None


class SharedItems:
    """Items that have one holder or more. `size` is that of their JSON in bytes; each item counts once."""

    def __init__(self) -> None:
        self.size = 0
        #: By `id()` of an item, which stays valid while it is held: its number of holders, and its size.
        self._held: dict[int, tuple[int, int]] = {}

    def add(self, items: Iterable[Item], sizes: Iterable[int] = ()) -> None:
        """Count one more holder of these items, whose `sizes` may be known."""
        for item, known in zip_longest(items, sizes):
            holders, size = self._held.get(id(item)) or (0, known or json_size([item]))
            self._held[id(item)] = holders + 1, size
            self.size += 0 if holders else size

    def remove(self, items: Iterable[Item]) -> None:
        """Count one holder less of these items."""
        for item in items:
            holders, size = self._held.pop(id(item))
            if holders > 1:
                self._held[id(item)] = holders - 1, size
            else:
                self.size -= size
