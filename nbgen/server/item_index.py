"""The items of responses and conversations: by their ids, and their size. Knows not what keeps them, nor how long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from nbgen.protocols.responses_items import Item, json_size


class ItemIndex:
    """Items, each under the id of what holds it: of several with one id, the item of the holder that came last."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[str, Item], ...]] = {}

    def add(self, holder: str, items: Iterable[Item]) -> None:
        """This holder has these, too, each with an id of its own."""
        for item in items:
            self._found[item["id"]] = (*self._found.get(item["id"], ()), (holder, item))

    def remove(self, holder: str, items: Iterable[Item]) -> None:
        """It has none with their ids any more."""
        for item in items:
            left = tuple(each for each in self._found.pop(item["id"], ()) if each[0] != holder)
            if left:
                self._found[item["id"]] = left

    def find(self, id: str) -> Item | None:
        """An item of this id."""
        found = self._found.get(id)
        return found[-1][1] if found else None


class SharedItems:
    """Items that one or more hold. `size` is that of their JSON in bytes, where each counts once."""

    def __init__(self) -> None:
        self.size = 0
        #: By an item's identity, which lasts while it is held: how many hold it, and its own size.
        self._held: dict[int, tuple[int, int]] = {}

    def add(self, items: Iterable[Item], sizes: Iterable[int] = ()) -> None:
        """One more holds these, whose `sizes` may be known."""
        for item, known in zip_longest(items, sizes):
            holders, size = self._held.get(id(item)) or (0, known or json_size([item]))
            self._held[id(item)] = holders + 1, size
            self.size += 0 if holders else size

    def remove(self, items: Iterable[Item]) -> None:
        """One of those who held these does so no more."""
        for item in items:
            holders, size = self._held.pop(id(item))
            if holders > 1:
                self._held[id(item)] = holders - 1, size
            else:
                self.size -= size
