"""Which places for snapshots are taken, and whose goes when another needs one. Plain Python.

States of recurrent layers are large and few, so the order in which they go is their own: segmented least recent use
(Karedla et al. 1994, "Caching Strategies to Improve Disk System Performance"). What somebody began from stays longer
than what nobody came back for. Knows neither what is kept nor what a holder is.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Snapshots(Generic[Holder]):
    """`size` places, numbered from 0; each is free or has one holder."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(reversed(range(size)))
        #: Those that nobody used since they are here, and the others, no more than half: the last used comes last.
        self._new: dict[Holder, int] = {}
        self._used: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._used)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._new or holder in self._used

    def take(self, holder: Holder) -> int:
        """A place for a holder that has none: a free one, or that of the new holder of longest ago."""
        if not self._free:
            self.drop(next(iter(self._new)))
        place = self._new[holder] = self._free.pop()
        return place

    def use(self, holder: Holder) -> int:
        """The holder's place, which it keeps longer from now on."""
        place = self._used[holder] = self._remove(holder)
        if len(self._used) > self.size // 2:
            oldest = next(iter(self._used))
            self._new[oldest] = self._used.pop(oldest)
        return place

    def drop(self, holder: Holder) -> None:
        """Free the holder's place, if it has one."""
        if holder in self:
            self._free.append(self._remove(holder))

    def _remove(self, holder: Holder) -> int:
        return self._new.pop(holder) if holder in self._new else self._used.pop(holder)
