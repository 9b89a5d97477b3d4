"""Prompts beside streams: what a step computes of either, and whose token comes first."""

from nbgen.engine.mixed_chunk import MixedChunk
from nbgen.engine.sequence import Sequence
from tests.engine.simulated_schedule import Machine, sequence


def test_decodes_go_on_while_a_long_prompt_is_computed() -> None:
    short, long = sequence([1, 2], 50), sequence([2] * 100, 5)
    machine = Machine([short], prefill_chunk=8)
    machine.step()
    machine.scheduler.add(long)
    for _ in range(12):
        before = short.num_output
        machine.step()
        assert short.num_output == before + 1, "the stream stalled for the prompt"
    assert long.num_computed == 96


def test_a_prompt_takes_small_steps_beside_streams_and_large_ones_beside_what_nobody_reads() -> None:
    short, unread, long = sequence([1, 2], 50), sequence([3, 4], 50), sequence([2] * 60, 5)
    short.streamed = True
    machine = Machine([short, unread], prefill_chunk=20, mixed_chunk=MixedChunk(4))
    machine.step()
    machine.scheduler.add(long)
    machine.step()
    assert long.num_computed == 4
    machine.scheduler.finish(short)
    machine.step()
    assert long.num_computed == 24
    machine.scheduler.finish(unread)
    machine.step()
    assert long.num_computed == 44


def test_more_of_a_prompt_goes_beside_more_streams_and_after_more_of_it() -> None:
    chunk = MixedChunk(least=12, most=128, for_each=1.5)
    assert [chunk.tokens(decodes, 0) for decodes in (1, 8, 32, 100)] == [13, 24, 60, 128]
    assert [chunk.tokens(1, context) for context in (320, 640, 10000)] == [13, 20, 128]


def streamed(prompt: int | list[int], output: int = 4) -> Sequence:
    made = sequence(prompt, output)
    made.streamed = True
    return made


def burst(*prompts: int, patience: float = 1.0, **options) -> Machine:
    """Streams of prompts of so many tokens each, that come at once."""
    streams = [streamed([i] * length) for i, length in enumerate(prompts, 5)]
    return Machine(streams, prefill_chunk=20, mixed_chunk=MixedChunk(2, 4, patience=patience), **options)


def outputs(machine: Machine) -> list[int]:
    """Tokens of each of its sequences after one step more."""
    machine.step()
    return [s.num_output for s in machine.sequences]


def test_first_tokens_of_prompts_that_come_at_once_come_before_second_ones() -> None:
    machine = burst(16, 16, 16)
    assert [outputs(machine) for _ in range(4)] == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 2, 2]]


def test_second_tokens_wait_for_so_long_only() -> None:
    machine = burst(16, 16, 16)
    assert [outputs(machine) for _ in range(2)] == [[1, 0, 0], [1, 1, 0]]
    machine.now = 1.5
    assert outputs(machine) == [2, 2, 0]


def test_second_tokens_wait_for_no_long_prompt_and_where_nobody_reads_them_for_none() -> None:
    assert [outputs(machine := burst(16, 40)), outputs(machine)] == [[1, 0], [2, 0]]
    unread = burst(16, 16, 16)
    for s in unread.sequences:
        s.streamed = False
    assert [outputs(unread) for _ in range(2)] == [[1, 0, 0], [2, 1, 0]]


def test_a_stream_that_runs_waits_for_no_burst() -> None:
    machine = burst(16)
    machine.step()
    machine.step()
    late = [streamed([i] * 6) for i in range(20, 23)]
    for s in late:
        machine.scheduler.add(s)
    machine.sequences += late
    assert outputs(machine)[0] == 3


def test_second_tokens_wait_for_nobody_who_finds_no_block() -> None:
    machine = burst(16, 16, 16, blocks=5)
    assert [outputs(machine) for _ in range(2)] == [[1, 0, 0], [2, 0, 0]]
