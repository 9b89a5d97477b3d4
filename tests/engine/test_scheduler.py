"""Random schedules: no block has two owners, none is lost, everybody ends, the oldest never waits for the younger."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.block_manager import BlockManager
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.scheduler import Scheduler
from nbgen.engine.sequence import Sequence, SequenceStatus
from nbgen.sampling_params import SamplingParams

BLOCK = 4


def sequence(prompt: int, output: int = 1) -> Sequence:
    nothing = Detokenizer(lambda _: "", lambda _: False, [])
    return Sequence("r", 0, [1] * prompt, SamplingParams(), output, 0, nothing, StopStrings(()))


def check_blocks(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    owned = [block for s in sequences for block in s.block_table]
    assert len(owned) == len(set(owned)), "a block has two owners"
    assert len(owned) + scheduler.blocks.num_free == scheduler.blocks.num_blocks, "a block is lost"


def run_step(scheduler: Scheduler, sequences: list[Sequence]) -> None:
    batch = scheduler.schedule()
    assert batch, "work is there and none is scheduled"
    assert sum(n for _, n in batch if n > 1) <= scheduler.prefill_chunk
    check_blocks(scheduler, sequences)
    for item in batch:
        assert len(item.sequence.block_table) * BLOCK >= item.sequence.num_computed + item.num_tokens
    sampled = [item.sequence for item in batch if item.samples]
    for item in batch:
        item.sequence.num_computed += item.num_tokens
    for s in sampled:
        s.append(1)
        if s.finish_reason:
            scheduler.finish(s)


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 20)), min_size=1, max_size=12),
    blocks=st.integers(11, 20),
    chunk=st.integers(1, 16),
    running=st.integers(1, 6),
    aborts=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), max_size=4),
)
def test_random_schedules_end_with_every_block_free(lengths, blocks, chunk, running, aborts) -> None:
    scheduler = Scheduler(BlockManager(blocks, BLOCK), max_running=running, prefill_chunk=chunk)
    sequences = [sequence(prompt, output) for prompt, output in lengths]
    for s in sequences:
        scheduler.add(s)
    for step in range(5000):
        for when, which in aborts:
            if when == step and which < len(sequences) and sequences[which].status is not SequenceStatus.FINISHED:
                scheduler.finish(sequences[which])
        if not scheduler.has_work:
            break
        run_step(scheduler, sequences)
    assert not scheduler.has_work, "the schedule never ends"
    assert scheduler.blocks.num_free == blocks
    aborted = {which for _, which in aborts}
    assert all(s.num_output == s.budget for i, s in enumerate(sequences) if i not in aborted)


def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    scheduler = Scheduler(BlockManager(64, BLOCK), max_running=4, prefill_chunk=8)
    short, long = sequence(2, 50), sequence(100, 5)
    scheduler.add(short)
    run_step(scheduler, [short])
    scheduler.add(long)
    for _ in range(12):
        before = short.num_output
        run_step(scheduler, [short, long])
        assert short.num_output == before + 1, "the stream stalled for the prompt"
    assert long.num_computed == 96


def test_first_come_first_served() -> None:
    scheduler = Scheduler(BlockManager(8, BLOCK), max_running=1, prefill_chunk=64)
    order = [sequence(4, 2) for _ in range(4)]
    finished = []
    for s in order:
        scheduler.add(s)
    while scheduler.has_work:
        run_step(scheduler, order)
        finished += [s for s in order if s.finish_reason and s not in finished]
    assert finished == order
