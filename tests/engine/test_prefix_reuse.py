"""What a sequence finds computed already, with and without states: exact to the token, and kept by least recent use."""

import pytest

from tests.engine.simulated_schedule import Machine, after, sequence


def test_cached_tokens_are_exact_to_the_token() -> None:
    """The numbers of SGLang's own test, a hundredth of their size."""
    machine = Machine([], blocks=64)
    counts = [after(machine, sequence(list(range(1, 1 + length)))) for length in (10, 100, 100, 10, 110)]
    assert counts == [0, 10, 99, 9, 100]


def test_what_a_prompt_has_computed_of_itself_was_not_cached() -> None:
    own = sequence(40)
    machine = Machine([own], prefill_chunk=8)
    for _ in range(3):
        machine.step()
        own.start(now=0.0)
    machine.scheduler.preempt_all()
    while machine.scheduler.has_work:
        machine.step()
    assert own.cached_tokens == 0


def test_a_chat_reuses_its_prompt_and_its_answer() -> None:
    machine = Machine([], blocks=64)
    first = sequence(list(range(2, 15)), 9)
    after(machine, first)
    second = sequence([*first.token_ids, 7, 8, 9])
    assert after(machine, second) == first.num_prompt + first.num_output - 1


def test_namespaces_share_nothing() -> None:
    machine = Machine([], blocks=64)
    assert after(machine, sequence(20, namespace="a")) == 0
    assert after(machine, sequence(20, namespace="b")) == 0
    assert after(machine, sequence(20, namespace="a")) == 19


def test_requests_that_arrive_together_share_their_beginning() -> None:
    prefix = [3] * 40
    together = [sequence([*prefix, i, i], 2) for i in range(4, 8)]
    machine = Machine(together)
    machine.run()
    assert [s.cached_tokens for s in together] == [0, 40, 40, 40]
    assert machine.computed == 42 + 3 * 2 + 4


def test_least_recent_use_goes_first() -> None:
    machine = Machine([], blocks=12)
    old, kept = [1] * 16, [2] * 16
    after(machine, sequence(old))
    after(machine, sequence(kept))
    after(machine, sequence(kept))
    after(machine, sequence([3] * 20))
    assert after(machine, sequence(kept)) == 15
    assert after(machine, sequence(old)) < 16


def test_the_order_of_leaves_does_not_grow_without_bound() -> None:
    machine = Machine([], blocks=16)
    for _ in range(500):
        after(machine, sequence(10))
    assert len(machine.scheduler.blocks.cache._leaves) < 150


def stateful(snapshots: int = 8, **options) -> Machine:
    return Machine([], snapshots=snapshots, **options)


def test_a_prompt_with_state_begins_again_at_its_last_whole_block() -> None:
    machine = stateful()
    assert [after(machine, sequence(list(range(1, 1 + length)))) for length in (10, 10, 14)] == [0, 8, 10]
    assert after(machine, sequence(list(range(1, 10)))) == 8


def test_a_chat_with_state_goes_on_at_the_very_token() -> None:
    machine = stateful(worth=64)
    first = sequence(list(range(2, 15)), 9)
    after(machine, first)
    second = sequence([*first.token_ids, 7, 8, 9])
    assert after(machine, second) == first.num_prompt + first.num_output - 1
    edited = sequence([*first.token_ids, 9, 9, 9])
    assert after(machine, edited) == first.num_prompt + first.num_output - 1, "that end is forgotten"


def test_the_second_prompt_leaves_a_snapshot_where_it_parts_from_the_first() -> None:
    machine = stateful(worth=8)
    counts = [after(machine, sequence([3] * 21 + [i] * 9)) for i in range(4, 8)]
    assert counts == [0, 0, 20, 20]
    assert machine.computed == 30 + 30 + 10 + 10


def test_prompts_with_state_that_arrive_together_share_their_beginning() -> None:
    together = [sequence([*[3] * 41, i, i], 2) for i in range(4, 8)]
    machine = Machine(together, snapshots=8, worth=8)
    machine.run()
    assert [s.cached_tokens for s in together] == [0, 40, 40, 40]
    assert machine.computed == 43 + 3 * 3 + 4


def test_who_arrives_while_a_prompt_is_computed_gets_its_state_from_where_they_part() -> None:
    first, second = sequence([3] * 40, 2), sequence([3] * 29 + [4] * 9, 2)
    machine = Machine([first], snapshots=8, worth=8, prefill_chunk=10)
    machine.step()
    assert after(machine, second) == 28
    assert machine.computed == 40 + 10 + 2


def test_samples_of_a_prompt_with_state_begin_at_its_last_whole_block() -> None:
    samples = [sequence([3] * 30, 5) for _ in range(3)]
    machine = Machine(samples, snapshots=4, worth=8)
    machine.run()
    assert [s.cached_tokens for s in samples] == [0, 28, 28]


def test_a_short_prompt_with_state_is_not_cut() -> None:
    machine = stateful(worth=64)
    assert [after(machine, sequence([3] * 60)) for _ in range(2)] == [0, 0]
    assert machine.computed == 120


@pytest.mark.parametrize("snapshots", [None, 4])
def test_who_gave_its_blocks_back_goes_on_where_it_was(snapshots: int | None) -> None:
    machine = Machine([sequence([i] * 8, 40) for i in (1, 2)], snapshots=snapshots, worth=64)
    for _ in range(10):
        machine.step()
    machine.scheduler.preempt_all()
    machine.run()
    assert machine.scheduler.preemptions == 2
    assert machine.computed == 2 * 47, "something was computed again"


def test_namespaces_share_no_state() -> None:
    machine = stateful()
    assert [after(machine, sequence(20, namespace=name)) for name in ("a", "b", "a")] == [0, 0, 16]


def test_a_snapshot_that_was_of_use_outlives_those_that_were_not() -> None:
    machine = stateful(snapshots=3, worth=64)
    shared = list(range(2, 12))
    after(machine, sequence(shared))
    assert after(machine, sequence([*shared, 1, 1, 1])) == 10
    for i in range(20, 26):
        assert after(machine, sequence([i] * 10)) == 0
    assert after(machine, sequence([*shared, 1, 2, 3])) == 10
    assert after(machine, sequence([20] * 11)) == 0


def test_without_room_for_snapshots_nothing_is_reused() -> None:
    machine = stateful(snapshots=0)
    assert [after(machine, sequence([3] * 30)) for _ in range(2)] == [0, 0]
    assert machine.scheduler.blocks.cache.num_blocks == 0


def test_the_longest_way_with_a_snapshot_is_gone() -> None:
    machine = stateful(worth=64)
    assert [after(machine, sequence([2, 2, 2, 2, 1], output)) for output in (1, 3)] == [0, 0]
    assert after(machine, sequence([2, 2, 2, 2, 1, 1, 1, 3])) == 7


def test_a_block_to_be_copied_never_keeps_its_sequence_from_running() -> None:
    machine = stateful(worth=64, blocks=11)
    after(machine, sequence([2] * 9, 1))
    assert after(machine, sequence([2] * 9 + [3] * 31, 4)) == 0, "it needs all blocks, the one to be copied as well"


def test_who_must_wait_holds_nothing() -> None:
    machine = stateful(worth=4, prefill_chunk=6)
    after(machine, sequence([2] * 9, 1))
    first = sequence([2] * 30)
    machine.sequences.append(first)
    machine.scheduler.add(first)
    machine.step()
    assert after(machine, sequence([2] * 30 + [3] * 2)) == 28, "it waits for more than the nine tokens that are cached"
    assert first.cached_tokens == 9
    assert machine.scheduler.blocks.num_free == 64


def test_nobody_waits_for_the_state_of_another_text_or_namespace() -> None:
    others = [sequence([3] * 40), sequence([3] * 40, namespace="a"), sequence([4] * 40)]
    machine = Machine(others, snapshots=8, worth=8, prefill_chunk=120)
    batch = machine.scheduler.schedule()
    assert len(batch) == 3
