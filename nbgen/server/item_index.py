"""The items of responses and conversations by their ids. Knows not what keeps them, nor how long."""

from __future__ import annotations

from collections.abc import Iterable

from nbgen.protocols.responses_items import Item


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
