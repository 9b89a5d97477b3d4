"""Blocks of a model with recurrent state: a cached prefix is reused only if a snapshot of the state after it exists.

A running sequence has a slot for its state. Nodes of the prefix cache keep snapshots of it: where a prompt ends or
first differs from another (its chunks are cut there), and at the last token when a sequence gives its blocks back.
Plain Python, no tensors: `take_copies` says what is to be copied.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from nbgen.engine.block_manager import BlockManager, StateCopy
from nbgen.engine.prefix_cache import Node
from nbgen.engine.sequence import Sequence

#: Tokens that a cut must save. Cutting a prompt adds a forward, which costs about as much as so many tokens.
WORTH = 64


class StatefulBlocks(BlockManager):
    """Hands out blocks, slots for the states of running sequences, and places for snapshots."""

    def __init__(
        self, num_blocks: int, block_size: int, *, num_slots: int, num_snapshots: int = 0, worth: int = WORTH
    ) -> None:
        """Without snapshots no prefix is reused. A prompt is cut only where that may save others `worth` tokens."""
        super().__init__(num_blocks, block_size, caches_prefixes=num_snapshots > 0, num_snapshots=num_snapshots)
        self.worth = worth
        self._slots = list(range(num_slots))
        #: The node whose snapshot a sequence will start from: set by `reuse`, taken by `admit` or `free`.
        self._starts: dict[Sequence, Node] = {}

    def reuse(self, sequence: Sequence) -> None:
        """Give a sequence without blocks the longest cached prefix of its tokens that has a snapshot at its end."""
        path = self._path(sequence) if self._shares(sequence) else []
        tokens = sequence.keys[: sequence.num_cacheable]
        for depth, node in self._with_snapshot(self.cache.root(sequence.namespace), path, tokens):
            if self._start(sequence, path[:depth], node):
                return

    def is_coming(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """After `reuse`: whether a running prompt will leave a snapshot that saves the sequence enough work to wait."""
        return self._shares(sequence) and any(
            other.num_computed < end <= self._common(other, sequence)
            for other in running
            for end in other.snapshots_at
            if end - sequence.num_computed >= self.worth
        )

    def arrive(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Have running prompts leave a snapshot where the sequence, which now begins to wait, differs from them."""
        for other in running:
            if other.num_uncomputed > 1 and self._shares(other):
                self._mark(other, self._common(other, sequence))

    def admit(self, sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Give the sequence a slot, with the state that `reuse` found, and decide where it leaves snapshots.

        It leaves them where it first differs from cached and from waiting prompts, and after its last whole block.
        """
        sequence.state_slot = heapq.heappop(self._slots)
        if (start := self._starts.pop(sequence, None)) is not None:
            if len(start.tokens) < self.block_size:
                self._copy(start, sequence, len(start.tokens))
            self._copies.append(StateCopy(sequence.state_slot, self.cache.snapshots.use(start), restores=True))
        if self._shares(sequence):
            partings = [self._common(sequence, other) for other in islice(waiting, self.cache.snapshots.size)]
            known = len(self._path(sequence)) * self.block_size
            for end in sorted({*partings, known, self._whole(len(sequence) - 1)}):
                self._mark(sequence, end)

    def share(self, sequence: Sequence) -> None:
        """Let others use the sequence's full blocks; and its state, if `snapshots_at` has this number of tokens."""
        super().share(sequence)
        if sequence.num_computed in sequence.snapshots_at:
            self._keep(sequence, sequence.nodes[-1])

    def free(self, sequence: Sequence) -> None:
        """Take back the sequence's slot and blocks. Computed blocks stay cached, with a snapshot of its last state."""
        start = self._starts.pop(sequence, None)
        if start is not None and len(start.tokens) < self.block_size:
            self.cache.unlock([start])
        if sequence.state_slot is not None and self._shares(sequence):
            self.share(sequence)
            if sequence.nodes and sequence.num_computed == len(sequence.nodes) * self.block_size:
                self._keep(sequence, sequence.nodes[-1])
        super().free(sequence)
        if sequence.state_slot is not None:
            heapq.heappush(self._slots, sequence.state_slot)
        sequence.state_slot, sequence.snapshots_at = None, []

    def _start(self, sequence: Sequence, nodes: list[Node], last: Node) -> bool:
        """Let the sequence start after `last`, to which the path `nodes` leads. False if there are too few blocks.

        If the block of `last` is not full, the sequence gets a copy, and the block stays locked until that is made.
        """
        shared = [*nodes, last] if len(last.tokens) == self.block_size else nodes
        self.cache.lock([*nodes, last])
        sequence.nodes, sequence.block_table = shared, [node.block for node in shared]
        sequence.num_computed = len(shared) * self.block_size
        self._starts[sequence] = last
        if shared is nodes and not self.can_allocate(sequence, len(sequence) + 1):
            self.free(sequence)
            sequence.num_computed = 0
            return False
        return True

    def _with_snapshot(self, root: Node, path: list[Node], tokens: list[int]) -> Iterator[tuple[int, Node]]:
        """The nodes with a snapshot that `tokens` pass through, the longest prefix first, each with its depth."""
        for depth in range(len(path), -1, -1):
            rest = tuple(tokens[depth * self.block_size : (depth + 1) * self.block_size])
            parent = path[depth - 1] if depth else root
            yield from ((depth, node) for node in parent.beginnings(rest) if node in self.cache.snapshots)

    def _keep_partial(self, sequence: Sequence, block: int) -> bool:
        """Cache the last block with a snapshot, if all its computed tokens are known; whether the cache took it."""
        start = len(sequence.nodes) * self.block_size
        tokens = tuple(sequence.keys[start : sequence.num_computed])
        if not tokens or start + len(tokens) < sequence.num_computed:
            return False
        parent = self._last(sequence)
        node = parent.children.get(tokens)
        new = node is None
        node = self.cache.add(parent, tokens, block) if node is None else node
        self._keep(sequence, node)
        return new

    def _keep(self, sequence: Sequence, node: Node) -> None:
        """Keep a snapshot of the state with `node`, which ends at the last computed token, unless it has one."""
        if node in self.cache.snapshots:
            self.cache.snapshots.use(node)
        elif sequence.state_slot is not None:
            self._copies.append(StateCopy(sequence.state_slot, self.cache.snapshots.take(node), restores=False))

    def _mark(self, sequence: Sequence, end: int) -> None:
        """Mark `end` for a snapshot, if at least `worth` tokens lie between it and the computed ones or last mark."""
        before = [at for at in (sequence.num_computed, *sequence.snapshots_at) if at <= end]
        if before and end - max(before) >= self.worth:
            sequence.snapshots_at.append(end)

    def _common(self, sequence: Sequence, other: Sequence) -> int:
        """How many first tokens, in whole blocks, both share and `other` could take from `sequence`."""
        if sequence.namespace != other.namespace or not self._shares(other):
            return 0
        most = self._whole(min(len(sequence) - 1, other.num_cacheable))
        ours, theirs, size = sequence.keys, other.keys, self.block_size
        return next((i for i in range(0, most, size) if ours[i : i + size] != theirs[i : i + size]), most)

    def _path(self, sequence: Sequence) -> list[Node]:
        return self.cache.match(sequence.namespace, sequence.keys[: sequence.num_cacheable])

    def _whole(self, num_tokens: int) -> int:
        """`num_tokens` rounded down to whole blocks."""
        return num_tokens - num_tokens % self.block_size
