"""Places for snapshots: which are taken, and which snapshot is evicted when a new one needs a place. Plain Python.

States of recurrent layers are large and few, so they have an eviction order of their own: segmented least recent use
(Karedla et al. 1994, "Caching Strategies to Improve Disk System Performance"). A snapshot that was used stays longer
than one that never was. Knows neither what is kept nor what a holder is.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Snapshots(Generic[Holder]):
    """`size` places, numbered from 0; each is free or has one holder."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(reversed(range(size)))
        #: Holders' places. `_used` has holders that were used, at most half of `size`. Both: the most recent last.
        self._new: dict[Holder, int] = {}
        self._used: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._used)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._new or holder in self._used

    def take(self, holder: Holder) -> int:
        """A place for a holder that has none: a free one, or that of the oldest holder in `_new`."""
        if not self._free:
            self.drop(next(iter(self._new)))
        place = self._new[holder] = self._free.pop()
        return place

    def use(self, holder: Holder) -> int:
        """The holder's place. This counts as a use, so the holder keeps its place longer."""
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
