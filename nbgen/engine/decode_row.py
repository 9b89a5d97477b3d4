"""What a decode alone is to those who keep a step of decodes for the next one. Plain Python, no tensors."""

from typing import NamedTuple


class DecodeRow(NamedTuple):
    """One sequence's newest token, its index, what its position differs from that by, and the blocks up to there.

    Of a model with states, the `state_slot` of its state as well.
    """

    token: int
    index: int  # type: ignore[assignment]  # in place of a tuple's own
    shift: int
    block_table: list[int]
    state_slot: int | None = None

    @property
    def position(self) -> int:
        return self.index + self.shift

    def slot(self, block_size: int) -> int:
        """Where its keys and values go."""
        return self.block_table[self.index // block_size] * block_size + self.index % block_size
