"""What a decode alone is to those who keep a step of decodes for the next one. Plain Python, no tensors."""

from typing import NamedTuple


class DecodeRow(NamedTuple):
    """One sequence's newest token, its index, what its position differs from that by, and the blocks up to there."""

    token: int
    index: int  # type: ignore[assignment]  # in place of a tuple's own
    shift: int
    block_table: list[int]

    @property
    def position(self) -> int:
        return self.index + self.shift

    def slot(self, block_size: int) -> int:
        """Where its keys and values go."""
        return self.block_table[self.index // block_size] * block_size + self.index % block_size
