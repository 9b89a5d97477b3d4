"""Blocks come side by side while there is room, and every one of them comes."""

from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.free_blocks import FreeBlocks


def test_two_sequences_that_grow_in_turn_do_not_mix() -> None:
    free, first, second = FreeBlocks(64), [], []
    for _ in range(8):
        for table in (first, second):
            table.append(free.take(table[-1] if table else None, 8))
    for table in (first, second):
        assert table == list(range(table[0], table[0] + 8))


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=120))
def test_no_block_is_given_twice_and_none_is_withheld(size: int, actions: list[tuple[bool, int]]) -> None:
    free, taken = FreeBlocks(size), []
    for give, number in actions:
        if give and taken:
            free.add(taken.pop(number % len(taken)))
        elif len(free):
            block = free.take(taken[-1] if taken and number % 2 else None, number)
            assert block not in taken
            taken.append(block)
    assert len(free) + len(taken) == size
    assert set(free).isdisjoint(taken)
