"""Free blocks, handed out so that a sequence's blocks stand side by side where they can. Plain Python.

Attention reads neighbours in one piece. Knows neither sequences nor what the blocks hold.
"""

#: Places that are tried for the beginning of a new run.
TRIES = 8


class FreeBlocks:
    """The ids of `size` blocks that nobody has."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = set(range(size))
        self._cursor = 0

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self):
        return iter(self._free)

    def add(self, block: int) -> None:
        self._free.add(block)

    def take(self, previous: int | None, expected: int) -> int:
        """The block after `previous`, or else one with room behind it for `expected` in a row."""
        block = -1 if previous is None else previous + 1
        if block not in self._free:
            block = self._beginning(expected)
        self._free.remove(block)
        return block

    def _beginning(self, expected: int) -> int:
        for _ in range(TRIES):
            start = self._cursor
            self._cursor = 0 if start + 2 * expected > self.size else start + expected
            if start in self._free and min(start + expected, self.size) - 1 in self._free:
                return start
        return min(self._free)
