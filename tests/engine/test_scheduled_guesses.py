"""Guesses share a step's tokens and take no room that anybody else needs."""

from nbgen.engine.guess import Guess
from tests.engine.simulated_schedule import Machine, sequence


def drafted(answer: tuple[int, ...], count: int = 1, **options) -> list[int]:
    """Rows of each step of so many sequences of 24 tokens."""
    machine = Machine([sequence([5, 6], 24) for _ in range(count)], answer=answer, draft_tokens=8, **options)
    rows = []
    while machine.scheduler.has_work:
        rows.append(len(machine.step()))
    assert all(s.num_output == 24 for s in machine.sequences)
    return rows


def test_what_repeats_comes_several_tokens_a_step() -> None:
    assert drafted((1,)) == [1, 1, 1, 2, 3, 6, 9, 1]
    assert drafted((1, 2, 3)) == [1, 1, 1, 1, 1, 2, 3, 6, 8]
    assert drafted(tuple(range(7, 37))) == [1] * 24


def test_many_share_the_guesses_of_a_step() -> None:
    assert max(drafted((1,), 4)) == 4 + 8
    assert max(drafted((1,), 9, max_running=9)) == 9


def test_guesses_take_no_block_that_is_not_free() -> None:
    cramped = Machine([sequence([5, 6], 24) for _ in range(3)], blocks=8, draft_tokens=8)
    cramped.run()
    assert cramped.scheduler.blocks.num_free == 8


#: What the sequence of 16 tokens `[1, 2] * 8` goes on with as guessed, and then otherwise.
OTHERWISE = (1, *range(40, 48), *range(70, 77))


def test_nobody_gives_way_to_a_guess() -> None:
    """The first one's wrong guesses are in a sixth block, and the second has ended when it comes there itself."""
    first, second = sequence([1, 2] * 8, 10), sequence(list(range(20, 35)), 4)
    machine = Machine([first, second], blocks=10, answer=OTHERWISE, draft_tokens=8)
    machine.step()
    machine.step()
    assert (len(first), len(first.block_table)) == (18, 6)
    machine.run()
    assert machine.scheduler.preemptions == 0


def test_nobody_waits_for_a_guess() -> None:
    first, second = sequence([1, 2] * 8, 10), sequence(list(range(20, 35)), 1)
    machine = Machine([first], blocks=9, answer=OTHERWISE, draft_tokens=8)
    machine.step()
    machine.step()
    assert (len(first), len(first.block_table)) == (18, 7)
    machine.scheduler.add(second)
    assert second in [item.sequence for item in machine.step()]


def test_guesses_do_not_cross_the_length_beyond_which_keys_are_others() -> None:
    machine = Machine([sequence([5, 6], 24)], draft_tokens=8, long_after=12)
    while machine.scheduler.has_work:
        guesses = [item.sequence for item in machine.step() if isinstance(item.sequence, Guess)]
        assert all((len(guess) > 12) == guess.namespace.long for guess in guesses)
