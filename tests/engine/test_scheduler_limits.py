"""The scheduler's limits: how many run, what a step has room for, and from where on a sequence is long."""

from nbgen.engine.sequence import SequenceStatus
from tests.engine.simulated_schedule import Machine, after, sequence


def test_no_more_run_than_may() -> None:
    machine = Machine([sequence(4, 3) for _ in range(3)], max_running=2)
    assert [len(machine.step()) for _ in range(4)] == [2, 2, 2, 1]


def test_nobody_is_admitted_to_a_step_without_room() -> None:
    machine = Machine([sequence([n] * 8) for n in (1, 2, 3)], prefill_chunk=8)
    machine.step()
    assert len(machine.scheduler.waiting) == 2
    assert all(not s.block_table for s in machine.scheduler.waiting)


def test_who_is_taken_out_is_finished_wherever_it_was() -> None:
    runs, waits = sequence(4, 9), sequence(4, 9)
    machine = Machine([runs, waits], max_running=1)
    machine.step()
    for s in (runs, waits):
        machine.scheduler.finish(s)
        assert s.status is SequenceStatus.FINISHED
    assert not machine.scheduler.has_work
    assert machine.scheduler.schedule() == []


def test_who_becomes_long_begins_anew_and_shares_nothing_with_the_short() -> None:
    machine = Machine([sequence(8, 6)], long_after=10)
    machine.run()
    assert machine.computed == 8 + 1 + 1 + 11 + 1 + 1
    assert machine.scheduler.preemptions == 0
    assert after(machine, sequence(10)) == 9
    assert after(machine, sequence(12)) == 11
    assert machine.scheduler.blocks.num_free == 64


def test_the_next_step_is_roomy_while_nobody_has_to_wait_or_begin_anew() -> None:
    s, other = sequence(8, 6), sequence([2] * 4, 6)
    machine = Machine([s, other], blocks=8, long_after=10)
    found = [(machine.step(), len(s), machine.scheduler.is_roomy)[1:] for _ in range(2)]
    assert found == [(9, True), (10, False)]
    machine = Machine([sequence(8, 9), sequence([2] * 8, 9)], blocks=6)
    machine.step()
    assert (machine.scheduler.blocks.num_free, machine.scheduler.is_roomy) == (2, True)
    machine.step()
    assert (machine.scheduler.blocks.num_free, machine.scheduler.is_roomy) == (0, False)
