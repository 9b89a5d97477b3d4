"""A decode as forwards need it that reuse one step of decodes for the next. Plain Python, no tensors."""

from typing import NamedTuple


class DecodeRow(NamedTuple):
    """A sequence's newest token, its index, the shift from index to position, and the blocks up to it.

    For a model with states, also the `state_slot` of the sequence's state.
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
        """The cache slot of the token's keys and values."""
        return self.block_table[self.index // block_size] * block_size + self.index % block_size
