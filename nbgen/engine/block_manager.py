"""Which blocks of the KV cache belong to which sequence. Plain Python: it counts blocks, it holds no tensors."""

from nbgen.engine.sequence import Sequence


class BlockManager:
    """Hands out blocks of `block_size` tokens. Block ids are indices into the KV cache."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_hold(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens fits when nothing else is there."""
        return self._blocks(num_tokens) <= self.num_blocks

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence's first `num_tokens` tokens need beyond those it has."""
        return max(0, self._blocks(num_tokens) - len(sequence.block_table))

    def can_allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        return self.missing(sequence, num_tokens) <= len(self._free)

    def allocate(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence what its first `num_tokens` tokens need. Call `can_allocate` first."""
        sequence.block_table.extend(self._free.pop() for _ in range(self.missing(sequence, num_tokens)))

    def free(self, sequence: Sequence) -> None:
        """Take all of the sequence's blocks back."""
        self._free.extend(reversed(sequence.block_table))
        sequence.block_table.clear()

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
