"""Random schedules on a simulated cache: no block has two owners, none is lost, what a sequence sees is its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.mixed_chunk import MixedChunk
from nbgen.engine.scheduler import CALM
from nbgen.engine.sequence import SequenceStatus
from tests.engine.simulated_schedule import Machine, sequence
from tests.soak import TIMES

prompts = st.tuples(
    st.lists(st.integers(1, 2), min_size=1, max_size=24),
    st.integers(1, 20),
    st.sampled_from(["", "a"]),
    st.integers(-1, 1),
)


@settings(max_examples=200 * TIMES)
@given(
    requests=st.lists(prompts, min_size=1, max_size=12),
    blocks=st.integers(11, 24),
    chunk=st.integers(1, 16),
    mixed=st.builds(
        MixedChunk,
        st.integers(1, 9),
        st.integers(9, 20),
        st.sampled_from([0.0, 1.5]),
        st.sampled_from([0.0, 3.0, 5000]),
    ),
    running=st.integers(1, 6),
    aborts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), max_size=4),
    retract=st.integers(0, 60),
    late=st.integers(0, 12),
    states=st.one_of(st.none(), st.tuples(st.integers(0, 6), st.integers(1, 12))),
    drafts=st.integers(0, 12),
    answer=st.lists(st.integers(1, 2), min_size=1, max_size=9).map(tuple),
    short=st.sets(st.integers(0, 60)),
    faults=st.sets(st.integers(0, 60), max_size=6),
)
def test_random_schedules_end_with_every_block_free(
    requests, blocks, chunk, mixed, running, aborts, retract, late, states, drafts, answer, short, faults
) -> None:
    sequences = [sequence(*request) for request in requests]
    for streamed in sequences[::2]:
        streamed.streamed = True
    snapshots, worth = states or (None, 1)
    options = {"max_running": running, "prefill_chunk": chunk, "mixed_chunk": mixed}
    if states is None:  # of which a guess has none
        options["draft_tokens"] = drafts
    machine = Machine(sequences[late:], blocks, snapshots, worth, answer, **options)
    machine.sequences = sequences
    for step in range(5000):
        machine.now = float(step)
        machine.scheduler.blocks.may_grow = lambda step=step: step not in short
        if step < min(late, len(sequences)):
            machine.scheduler.add(sequences[step])
        arrived = [*sequences[late:], *sequences[: min(late, step + 1)]]
        for s in [sequences[which] for when, which in aborts if when == step and which < len(sequences)]:
            if s in arrived and s.status is not SequenceStatus.FINISHED:
                machine.scheduler.finish(s)
        if step == retract:
            machine.scheduler.preempt_all()
            assert machine.scheduler.blocks.num_free == blocks
        if not machine.scheduler.has_work and step >= late:
            break
        if machine.scheduler.has_work:
            machine.fail() if step in faults else machine.step()
    assert not machine.scheduler.has_work, "the schedule never ends"
    assert machine.scheduler.blocks.num_free == blocks
    machine.scheduler.blocks.cache.flush()
    machine.check_states()
    assert len(machine.scheduler.blocks._free) == blocks
    assert len(machine.scheduler.blocks.cache.snapshots) == 0
    aborted = [*machine.failed, *(sequences[which] for _, which in aborts if which < len(sequences))]
    assert all(s.num_output == s.budget for s in sequences if s not in aborted)
    for s in sequences:
        expected = [answer[place % len(answer)] for place in range(s.num_prompt, len(s))]
        assert s.output_ids == expected, "a guess was taken for a token, or stood in its way"


def test_who_has_grown_long_waits_as_a_long_one() -> None:
    """Whoever has it wait: what is computed of it from now on has other keys than before."""
    grown = sequence([5, 6], 24)
    machine = Machine([grown], long_after=12)
    while len(grown) <= 12:
        machine.step()
    machine.scheduler.preempt_all()
    assert grown.namespace.long


def test_who_waits_for_room_is_not_looked_at_in_every_step() -> None:
    """What is cached of a long prompt takes long to find: 1.5 ms of 32,000 tokens."""
    first, late, looked = sequence([7] * 150, 40), sequence([1] * 100, 2), []
    machine = Machine([first], blocks=60)
    blocks, steps = machine.scheduler.blocks, 0
    reuse, blocks.reuse = blocks.reuse, lambda s: looked.append(s) or reuse(s)
    while first.num_output < 30:
        machine.step()
        if first.num_output == 1:
            machine.scheduler.add(late)
        steps += late.rank > first.rank
    assert steps > 25
    assert looked == [first, late]
    machine.run()
    assert late.num_output == 2


def test_who_waits_for_what_another_copies_waits_for_that_step_alone() -> None:
    first, late = sequence([7] * 5, 6), sequence([1] * 10)
    machine = Machine([first], blocks=5)
    machine.step()
    machine.step()
    machine.scheduler.preempt_all()
    machine.scheduler.add(late)
    assert [item.sequence for item in machine.step()] == [first]
    assert [item.sequence for item in machine.step()] == [first, late]


def finishing_order(machine: Machine) -> list[int]:
    """Which of its sequences ended first, second, …"""
    finished: list[int] = []
    while machine.scheduler.has_work:
        machine.step()
        finished += [i for i, s in enumerate(machine.sequences) if s.finish_reason and i not in finished]
    return finished


def test_prompts_that_are_not_cut_come_one_to_a_step_beside_the_decodes() -> None:
    machine = Machine([sequence([n] * n, output=9) for n in (5, 30, 2)], prefill_chunk=None)
    steps = [[count for _, count in machine.step()] for _ in range(4)]
    assert steps == [[5], [1, 30], [1, 1, 2], [1, 1, 1]]


def test_first_come_first_served() -> None:
    assert finishing_order(Machine([sequence(4, 2) for _ in range(4)], blocks=8, max_running=1)) == [0, 1, 2, 3]


def test_first_come_first_served_within_a_priority() -> None:
    waiting = [sequence(4, 2, priority=priority) for priority in (0, 5, -1, 5, 0)]
    assert finishing_order(Machine(waiting, blocks=8, max_running=1)) == [1, 3, 0, 4, 2]


def test_what_has_to_give_way_is_the_last_of_the_lowest_priority() -> None:
    low, high = sequence([1] * 8, 40, priority=0), sequence([2] * 8, 40, priority=1)
    machine = Machine([low], blocks=14)
    machine.step()
    machine.sequences.append(high)
    machine.scheduler.add(high)
    machine.run()
    assert machine.scheduler.preemptions == 1
    assert finishing_order(machine) == []
    assert low.num_output == high.num_output == 40


def test_steps_grow_again_once_a_shortage_is_long_over() -> None:
    scheduler = Machine([], prefill_chunk=1000).scheduler
    for _ in range(3):
        scheduler.failed(short=True)
    assert scheduler.prefill_chunk == 250
    chunks = []
    for _ in range(3 * CALM):
        chunks.append(scheduler.prefill_chunk)
        scheduler.succeeded([])
    assert chunks == [250] * CALM + [500] * CALM + [1000] * CALM
    assert scheduler.prefill_chunk == 1000
