"""Which blocks of the KV cache belong to which sequence, and which are kept for later. Plain Python, no tensors.

A block is free, a sequence's own, or cached (shared by sequences with the same prefix, or used by none). Unused cached
blocks count as free and are evicted when blocks are needed. If memory is short, they are evicted before a block is
taken that was never used: on a CPU such a block takes memory only once it is written.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nbgen.engine.prefix_cache import Node, PrefixCache
from nbgen.engine.sequence import Sequence


class Copy(NamedTuple):
    """Copy the first `num_tokens` tokens of the block `source` to the block `target`."""

    source: int
    target: int
    num_tokens: int


class StateCopy(NamedTuple):
    """Copy the recurrent state of a running sequence from `state_slot` to `snapshot`, or back if it `restores`."""

    state_slot: int
    snapshot: int
    restores: bool


Copies = Iterable[Copy | StateCopy]


class BlockManager:
    """Hands out blocks of `block_size` tokens. Block ids are indices into the KV cache."""

    def __init__(
        self, num_blocks: int, block_size: int, *, caches_prefixes: bool = True, num_snapshots: int = 0
    ) -> None:
        #: Whether a block that was never used may be taken although a cached one could be evicted instead.
        self.may_grow: Callable[[], bool] = lambda: True
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(reversed(range(num_blocks)))
        #: Blocks with this id or a higher one were never used.
        self._fresh = 0
        self.cache = PrefixCache(block_size, self._free.append, num_snapshots)
        self.caches_prefixes = caches_prefixes
        self._copies: list[Copy | StateCopy] = []
        self._copying: list[Node] = []

    @property
    def num_free(self) -> int:
        return len(self._free) + self.cache.num_evictable

    def can_allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        return self._missing(sequence, num_tokens) <= self.num_free

    def allocate(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence the blocks that its first `num_tokens` tokens need. Call `can_allocate` first."""
        for _ in range(self._missing(sequence, num_tokens)):
            sequence.block_table.append(self._take())

    def cut(self, sequence: Sequence) -> None:
        """Take back the blocks that the sequence has beyond its tokens."""
        while -(-len(sequence) // self.block_size) < len(sequence.block_table):
            self._free.append(sequence.block_table.pop())

    def reuse(self, sequence: Sequence) -> None:
        """Give a sequence without blocks its cached prefix, never with the last token, which must be computed."""
        if not self.caches_prefixes:
            return
        nodes = self.cache.match(sequence.namespace, sequence.keys[: sequence.num_cacheable])
        self.cache.lock(nodes)
        sequence.nodes = nodes
        sequence.block_table = [node.block for node in nodes]
        sequence.num_computed = len(nodes) * self.block_size

    def is_coming(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """After `reuse`: whether a running prompt will compute the sequence's next block: then waiting saves work."""
        end = sequence.num_computed + self.block_size
        beginning = sequence.keys[:end]
        return (
            self.caches_prefixes
            and end <= sequence.num_cacheable
            and any(
                other.num_uncomputed > 1
                and other.embeds is None
                and other.namespace == sequence.namespace
                and other.num_computed < end <= len(other)
                and other.keys[:end] == beginning
                for other in running
            )
        )

    def arrive(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Note that a sequence begins to wait while others run."""

    def admit(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """After `reuse`, when the sequence begins to run: copy the cached part of its next block, if there is room."""
        end = min(sequence.num_computed + self.block_size, sequence.num_cacheable)
        rest = tuple(sequence.keys[sequence.num_computed : end])
        node, length = self._last(sequence).best_child(rest) if self.caches_prefixes else (None, 0)
        if node is None:
            return
        self.cache.lock([node])
        if self.can_allocate(sequence, len(sequence) + 1):
            self._copy(node, sequence, length)
        else:
            self.cache.unlock([node])

    def take_copies(self) -> list[Copy | StateCopy]:
        """The copies to make before the next step, in this order. Each copy is returned once."""
        copies, self._copies = self._copies, []
        return copies

    def copied(self) -> None:
        """Note that the copies from `take_copies` are made: their sources may be evicted."""
        self.cache.unlock(self._copying)
        self._copying.clear()

    def share(self, sequence: Sequence) -> None:
        """Cache the sequence's full blocks for others; a block that is cached already replaces the sequence's own."""
        if not self._shares(sequence):
            return
        known = min(sequence.num_computed, len(sequence.token_ids))
        while (end := (len(sequence.nodes) + 1) * self.block_size) <= known:
            index = len(sequence.nodes)
            self._share_block(sequence, index, tuple(sequence.keys[end - self.block_size : end]))

    def free(self, sequence: Sequence) -> None:
        """Take back all of the sequence's blocks; computed ones stay cached until their room is needed.

        Those of a spoiled sequence are dropped, with the prefix that it reused: that may be what spoiled it.
        """
        self.share(sequence)
        own = sequence.block_table[len(sequence.nodes) :]
        if own and self._shares(sequence) and self._keep_partial(sequence, own[0]):
            own = own[1:]
        for block in own:
            self._free.append(block)
        self.cache.unlock(reversed(sequence.nodes))
        if sequence.spoiled:
            self.cache.drop(sequence.nodes)
        sequence.block_table, sequence.nodes = [], []

    def _copy(self, node: Node, sequence: Sequence, num_tokens: int) -> None:
        """Schedule a copy of the first tokens of the locked node's block to the sequence's next block."""
        self._copying.append(node)
        self.allocate(sequence, sequence.num_computed + num_tokens)
        self._copies.append(Copy(node.block, sequence.block_table[-1], num_tokens))
        sequence.num_computed += num_tokens

    def _shares(self, sequence: Sequence) -> bool:
        """Whether others may use the sequence's blocks: not with input embeddings, which token ids do not identify."""
        return self.caches_prefixes and sequence.embeds is None and not sequence.spoiled

    def _share_block(self, sequence: Sequence, index: int, tokens: tuple[int, ...]) -> None:
        parent, block = self._last(sequence), sequence.block_table[index]
        if (node := parent.children.get(tokens)) is None:
            node = self.cache.add(parent, tokens, block)
        else:
            self._free.append(block)
            sequence.block_table[index] = node.block
        self.cache.lock([node])
        sequence.nodes.append(node)

    def _keep_partial(self, sequence: Sequence, block: int) -> bool:
        """Cache the partly filled last block if it holds tokens that the cache lacks; returns whether it is kept."""
        tokens = tuple(sequence.keys[len(sequence.nodes) * self.block_size : sequence.num_computed])
        parent = self._last(sequence)
        if not tokens or parent.best_child(tokens)[1] == len(tokens):
            return False
        self.cache.add(parent, tokens, block)
        return True

    def _last(self, sequence: Sequence) -> Node:
        return sequence.nodes[-1] if sequence.nodes else self.cache.root(sequence.namespace)

    def _take(self) -> int:
        """A free block, the most recently freed first: so little memory is ever touched."""
        if not self._free or (self._free[-1] >= self._fresh and self.cache.num_evictable and not self.may_grow()):
            self.cache.evict()
        block = self._free.pop()
        self._fresh = max(self._fresh, block + 1)
        return block

    def _missing(self, sequence: Sequence, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.block_size) - len(sequence.block_table))
