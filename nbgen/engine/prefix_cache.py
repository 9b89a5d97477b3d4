"""Blocks whose tokens are known, kept after their sequences for the next that begins alike. Plain Python.

A tree with one block a node, after SGLang's radix attention (Zheng et al. 2024, section 3): a path from a root spells
the tokens of a prompt and its answer. Blocks in use are locked, with all above them; the rest are evicted by least
recent use. A node may have a snapshot of a model's recurrent state right after its tokens, which goes with it. Knows
neither sequences nor tensors.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nbgen.engine.snapshots import Snapshots

#: Outdated entries of the order of leaves that are tolerated before it is cleaned.
SLACK = 64


@dataclass(eq=False)
class Node:
    """A cached block: `tokens` are those whose keys and values it holds, fewer than a block's only in a leaf."""

    tokens: tuple[int, ...] = ()
    block: int = -1
    parent: Node | None = None
    children: dict[int, list[Node]] = field(default_factory=dict)
    locks: int = 0
    used: int = 0

    def common(self, tokens: Sequence[int]) -> int:
        """How many tokens this block and `tokens` begin with alike."""
        pairs = zip(self.tokens, tokens, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(tokens)))

    def best_child(self, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """The child that begins most like `tokens`, and for how many of them."""
        alike = [(child.common(tokens), child) for child in self.children.get(tokens[0], ())] if tokens else []
        length, child = max(alike, key=lambda pair: pair[0], default=(0, None))
        return child, length


class Match(NamedTuple):
    """What is cached of some tokens: whole blocks, and the first `partial_tokens` of one more."""

    nodes: list[Node]
    partial: Node | None
    partial_tokens: int


class PrefixCache:
    """Trees of cached blocks, one for each namespace (an adapter, a salt).

    `give_back` gets the blocks that the cache lets go.
    """

    def __init__(self, block_size: int, give_back: Callable[[int], None], num_snapshots: int = 0) -> None:
        self.block_size = block_size
        self.snapshots: Snapshots[Node] = Snapshots(num_snapshots)
        self.num_blocks = 0
        self._num_locked = 0
        self._give_back = give_back
        self._roots: dict[str, Node] = {}
        self._clock = itertools.count(1)
        #: Leaves by their last use; an entry whose use is not its node's last is outdated.
        self._leaves: list[tuple[int, Node]] = []

    @property
    def num_evictable(self) -> int:
        """Blocks that `evict` can give back: all that nobody uses, since whoever locks a block locks those above."""
        return self.num_blocks - self._num_locked

    def root(self, namespace: str) -> Node:
        return self._roots.setdefault(namespace, Node())

    def match(self, namespace: str, tokens: Sequence[int]) -> Match:
        """The longest cached beginning of `tokens`. Lock what is to be used before anything else happens."""
        nodes, node = [], self.root(namespace)
        while True:
            start = len(nodes) * self.block_size
            child, length = node.best_child(tokens[start : start + self.block_size])
            if child is None or length < self.block_size:
                return Match(nodes, child, length)
            nodes.append(child)
            node = child

    def add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """Keep `block`, which holds `tokens` after those of `parent`; a leaf that it extends is let go.

        One with a snapshot stays: only there can others go on from it.
        """
        for sibling in list(parent.children.get(tokens[0], ())):
            needed = sibling.locks or sibling in self.snapshots
            if not needed and sibling.common(tokens) == len(sibling.tokens):
                self._remove(sibling)
        node = Node(tokens, block, parent)
        parent.children.setdefault(tokens[0], []).append(node)
        self.num_blocks += 1
        self._offer(node)
        return node

    def lock(self, nodes: Iterable[Node]) -> None:
        """Keep the nodes until they are unlocked as often. A path is locked from its beginning."""
        for node in nodes:
            self._num_locked += not node.locks
            node.locks += 1

    def unlock(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.locks -= 1
            self._num_locked -= not node.locks
            self._offer(node)

    def evict(self) -> None:
        """Give back the block of least recent use. Call only while `num_evictable` is not 0."""
        while True:
            used, node = heapq.heappop(self._leaves)
            if used == node.used and not node.locks and not node.children:
                self._remove(node)
                return

    def flush(self) -> None:
        """Give back every block that nobody uses."""
        while self.num_evictable:
            self.evict()

    def _offer(self, node: Node) -> None:
        """Note a use of the node, which may be evicted from now on if it is a leaf that nobody uses."""
        node.used = next(self._clock)
        self._push(node)

    def _push(self, node: Node) -> None:
        if node.locks or node.children or node.parent is None:
            return
        heapq.heappush(self._leaves, (node.used, node))
        if len(self._leaves) > 2 * self.num_blocks + SLACK:
            self._leaves = [(used, n) for used, n in self._leaves if used == n.used and not n.locks and not n.children]
            heapq.heapify(self._leaves)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        siblings = parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.tokens[0]]
        node.used = 0
        self.num_blocks -= 1
        self.snapshots.drop(node)
        self._give_back(node.block)
        self._push(parent)
