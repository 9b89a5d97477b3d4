"""The prefix cache: keeps computed blocks after their sequences end, for others that begin alike. Plain Python.

A tree with one block a node, after SGLang's radix attention (Zheng et al. 2024, section 3): a path from a root spells
the tokens of a prompt and its answer. Blocks in use are locked, with all above them; the rest are evicted by least
recent use. A node may have a snapshot of a model's recurrent state right after its tokens, evicted with the node.
Knows neither sequences nor tensors.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nbgen.engine.snapshots import Snapshots

#: How many outdated entries `PrefixCache._leaves` may have before it is cleaned.
SLACK = 64


@dataclass(eq=False, slots=True, repr=False)
class Node:
    """A cached block, which holds the keys and values of `tokens`. Only a leaf may have fewer tokens than a block.

    Finding a child takes about the same time however many there are: by its tokens in `children`, or next to where
    these tokens would stand in `order`, the sorted list of all children's tokens.
    """

    tokens: tuple[int, ...] = ()
    block: int = -1
    parent: Node | None = None
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)
    locks: int = 0
    used: int = 0

    def best_child(self, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """The child that shares the most first tokens with `tokens`, and how many; of equal ones the first in order."""
        if (child := self.children.get(tokens)) is not None:
            return child, len(tokens)
        at = bisect_left(self.order, tokens)
        beside = [(_common(each, tokens), each) for each in self.order[max(at - 1, 0) : at + 1]]
        length, best = max(beside, key=lambda pair: pair[0], default=(0, ()))
        return (self.children[best], length) if length else (None, 0)

    def beginnings(self, tokens: tuple[int, ...]) -> Iterator[Node]:
        """The children whose tokens are a prefix of `tokens`, the longest first."""
        _, length = self.best_child(tokens)
        found = (self.children.get(tokens[:end]) for end in range(length, 0, -1))
        return (child for child in found if child is not None)

    def adopt(self, child: Node) -> None:
        """Add a child. No other child may have the same tokens."""
        assert child.tokens not in self.children
        self.children[child.tokens] = child
        insort(self.order, child.tokens)

    def disown(self, child: Node) -> None:
        """Remove a child."""
        del self.children[child.tokens]
        del self.order[bisect_left(self.order, child.tokens)]


def _common(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


class Namespace(NamedTuple):
    """Sequences share cached blocks only if their namespaces are equal. A request chooses `asked` alone.

    `adapter` is the version of a LoRA adapter, 0 where there is none. `long` sequences have other keys and values.
    """

    asked: tuple[str, ...] = ()
    adapter: int = 0
    long: bool = False


#: The namespace of requests that ask for none.
COMMON = Namespace()


class PrefixCache:
    """Trees of cached blocks, one for each namespace.

    The cache calls `give_back` with each block that it evicts.
    """

    def __init__(self, block_size: int, give_back: Callable[[int], None], num_snapshots: int = 0) -> None:
        self.block_size = block_size
        self.snapshots: Snapshots[Node] = Snapshots(num_snapshots)
        self.num_blocks = 0
        self._num_locked = 0
        self._give_back = give_back
        self._roots: dict[Namespace, Node] = {}
        self._clock = itertools.count(1)
        #: A heap of leaves by their last use. An entry is outdated if its node was used again later.
        self._leaves: list[tuple[int, Node]] = []

    @property
    def num_evictable(self) -> int:
        """How many blocks `evict` can give back: all unlocked ones, since a lock on a block also locks those above."""
        return self.num_blocks - self._num_locked

    def root(self, namespace: Namespace) -> Node:
        """The root of the namespace's tree. At most about as many empty namespaces are kept as there are blocks."""
        if namespace not in self._roots and len(self._roots) > self.num_blocks + SLACK:
            self._roots = {name: node for name, node in self._roots.items() if node.children}
        return self._roots.setdefault(namespace, Node())

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> list[Node]:
        """The longest cached prefix of `tokens`, in whole blocks. Lock the nodes to be used before any other call."""
        nodes: list[Node] = []
        node = self.root(namespace)
        while True:
            start = len(nodes) * self.block_size
            child, length = node.best_child(tuple(tokens[start : start + self.block_size]))
            if child is None or length < self.block_size:
                return nodes
            nodes.append(child)
            node = child

    def add(self, parent: Node, tokens: tuple[int, ...], block: int) -> Node:
        """Cache `block`, which holds `tokens` after those of `parent`; a shorter leaf that it extends is removed.

        One with a snapshot stays: others can continue only from there. No child of `parent` may have these tokens.
        """
        for shorter in list(parent.beginnings(tokens)):
            if not shorter.locks and shorter not in self.snapshots:
                self._remove(shorter)
        node = Node(tokens, block, parent)
        parent.adopt(node)
        self.num_blocks += 1
        self._offer(node)
        return node

    def lock(self, nodes: Iterable[Node]) -> None:
        """Keep the nodes until they are unlocked as often as locked. Always lock a path from the root on."""
        for node in nodes:
            self._num_locked += not node.locks
            node.locks += 1

    def unlock(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.locks -= 1
            self._num_locked -= not node.locks
            self._offer(node)

    def evict(self) -> None:
        """Give back the least recently used block. Call only while `num_evictable` is not 0."""
        while True:
            used, node = heapq.heappop(self._leaves)
            if used == node.used and not node.locks and not node.children:
                self._remove(node)
                return

    def drop(self, path: Sequence[Node]) -> None:
        """Give back the blocks of a path from a root, from its end on, up to one that others use or that leads on."""
        for node in reversed(path):
            if node.locks or node.children:
                return
            self._remove(node)

    def flush(self) -> None:
        """Give back every block that nobody uses."""
        while self.num_evictable:
            self.evict()

    def _offer(self, node: Node) -> None:
        """Note a use of the node. From now on it may be evicted if it is an unlocked leaf."""
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
        assert parent is not None
        parent.disown(node)
        node.used = 0
        self.num_blocks -= 1
        self.snapshots.drop(node)
        self._give_back(node.block)
        self._push(parent)
