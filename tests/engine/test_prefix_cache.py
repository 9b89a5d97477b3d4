"""The tree of cached blocks finds what begins alike, however many blocks stand beside each other."""

import random

from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.prefix_cache import SLACK, Namespace, Node, PrefixCache

BLOCK = 4
blocks = st.lists(st.integers(1, 3), min_size=1, max_size=BLOCK).map(tuple)


class Counted(int):
    """A token that counts how often any is compared."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < int(other)


def alike(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    return next((i for i in range(BLOCK, 0, -1) if len(tokens[:i]) == i and tokens[:i] == others[:i]), 0)


@given(st.sets(blocks), st.sets(blocks), blocks | st.just(()))
def test_the_child_found_begins_as_much_alike_as_any(
    kept: set[tuple[int, ...]], gone: set[tuple[int, ...]], wanted: tuple[int, ...]
) -> None:
    root = Node()
    for tokens in kept | gone:
        root.adopt(Node(tokens))
    for tokens in gone:
        root.disown(root.children[tokens])
    child, length = root.best_child(wanted)
    assert length == max((alike(tokens, wanted) for tokens in kept - gone), default=0)
    assert (child is None) == (length == 0)
    assert child is None or alike(child.tokens, wanted) == length
    shorter = [tokens for tokens in kept - gone if tokens == wanted[: len(tokens)]]
    assert [node.tokens for node in root.beginnings(wanted)] == sorted(shorter, key=len, reverse=True)


@given(st.permutations([(1, 1, 1, 1), (1, 1, 1, 2), (1, 2, 1, 1), (1, 2, 2)]))
def test_which_child_is_found_does_not_depend_on_the_order_of_arrival(arrived: list[tuple[int, ...]]) -> None:
    root = Node()
    for tokens in arrived:
        root.adopt(Node(tokens))
    found = [root.best_child(wanted)[0].tokens for wanted in ((1,), (1, 1, 1), (1, 2, 3), (1, 3))]
    assert found == [(1, 1, 1, 1), (1, 1, 1, 1), (1, 2, 2), (1, 2, 2)]


def comparisons(siblings: int) -> int:
    """How often tokens are compared where one block is found, one nearly found and one added beside so many."""
    cache = PrefixCache(BLOCK, lambda block: None)
    tokens = [tuple(map(Counted, (7, 7, i, i))) for i in range(siblings)]
    for block, each in enumerate(tokens):
        cache.add(cache.root(""), each, block)
    Counted.comparisons = 0
    middle = siblings // 2
    nodes = cache.match("", list(map(Counted, (7, 7, middle, middle, 1))))
    assert [node.tokens for node in nodes] == [tokens[middle]]
    assert cache.root("").best_child(tuple(map(Counted, (7, 7, middle, 0))))[1] == 3
    cache.add(cache.root(""), tuple(map(Counted, (7, 7, middle, 0))), siblings)
    cache.evict()
    return Counted.comparisons


def test_a_hundred_times_the_siblings_is_not_a_hundred_times_the_work() -> None:
    assert comparisons(3000) < 4 * comparisons(30)


def test_namespaces_with_nothing_in_them_are_forgotten() -> None:
    cache = PrefixCache(BLOCK, give_back=lambda block: None)
    kept = cache.add(cache.root(Namespace(("kept",))), (1, 2, 3, 4), 0)
    for number in range(10 * SLACK):
        cache.match(Namespace((str(number),)), [1, 2, 3, 4])
    assert len(cache._roots) <= SLACK + 2
    assert cache.match(Namespace(("kept",)), [1, 2, 3, 4]) == [kept]


def test_a_leaf_goes_when_a_longer_one_takes_its_place() -> None:
    given_back: list[int] = []
    cache = PrefixCache(BLOCK, given_back.append)
    cache.add(cache.root(Namespace()), (1, 2), 0)
    cache.add(cache.root(Namespace()), (1, 3), 1)
    cache.add(cache.root(Namespace()), (1, 2, 3), 2)
    assert given_back == [0]
    assert (cache.num_blocks, cache.num_evictable) == (2, 2)


def test_a_leaf_that_is_used_or_has_a_snapshot_stays_beside_a_longer_one() -> None:
    given_back: list[int] = []
    cache = PrefixCache(BLOCK, given_back.append, num_snapshots=1)
    root = cache.root(Namespace())
    cache.lock([cache.add(root, (1,), 0)])
    kept = cache.add(root, (1, 2), 1)
    cache.snapshots.take(kept)
    cache.add(root, (1, 2, 3), 2)
    assert given_back == []
    assert (cache.num_blocks, cache.num_evictable) == (3, 2)


def test_blocks_go_in_the_order_of_their_last_use_however_often_they_were_used() -> None:
    given_back: list[int] = []
    cache = PrefixCache(BLOCK, given_back.append)
    nodes = [cache.add(cache.root(Namespace()), (number,) * BLOCK, number) for number in range(50)]
    uses = random.Random(0).choices(range(50), k=2000)
    for number in uses:
        cache.lock([nodes[number]])
        cache.unlock([nodes[number]])
    cache.flush()
    assert given_back == sorted(range(50), key=lambda number: len(uses) - uses[::-1].index(number))
