"""Who is late: by what they waited and ran, never by what their own siblings or a pause took."""

from nbgen.engine.deadlines import Deadlines
from nbgen.engine.sequence import Sequence, SequenceStatus
from tests.engine.simulated_schedule import sequence


def waiting(arrived: float = 0.0, group: str = "a") -> Sequence:
    s = sequence(1)
    s.arrived, s.group = arrived, group
    return s


def running(started: float = 0.0, group: str = "a") -> Sequence:
    s = waiting(group=group)
    s.status, s.started = SequenceStatus.RUNNING, started
    return s


def test_who_waits_too_long_is_refused_and_may_try_again() -> None:
    deadlines, s = Deadlines(60, 600), waiting(arrived=100)
    assert list(deadlines.late([s], 160)) == []
    ((late, reason),) = deadlines.late([s], 161)
    assert (late, reason.type, reason.status) == (s, "error", 503)
    assert "waited 60 seconds" in reason.message


def test_who_runs_too_long_keeps_what_it_has() -> None:
    deadlines, s = Deadlines(60, 600), running(started=1000)
    assert list(deadlines.late([s], 1600)) == []
    ((_, reason),) = deadlines.late([s], 1601)
    assert (reason.type, reason.status) == ("abort", None)
    assert "timeout" in reason.message


def test_a_preempted_sequence_still_counts_as_running() -> None:
    deadlines, s = Deadlines(60, 600), running()
    list(deadlines.late([s], 10))
    s.status = SequenceStatus.WAITING
    assert list(deadlines.late([s], 500)) == []


def test_siblings_wait_for_one_another() -> None:
    deadlines, first, second, other = Deadlines(60, None), running(), waiting(), waiting(group="b")
    assert [s for s, _ in deadlines.late([first, second, other], 200)] == [other]
    assert list(deadlines.late([second], 250)) == []
    assert [s for s, _ in deadlines.late([second], 261)] == [second]


def test_a_pause_counts_for_nothing() -> None:
    deadlines, s, t = Deadlines(60, 600), waiting(arrived=100, group="b"), running()
    list(deadlines.late([t], 0))
    deadlines.shift([s, t], 100, 1100)
    assert list(deadlines.late([s, t], 1160)) == []


def test_who_came_in_a_pause_waits_since_its_end() -> None:
    deadlines, s = Deadlines(60, 600), waiting(arrived=1090)
    deadlines.shift([s], 100, 1100)
    assert list(deadlines.late([s], 1160)) == []
    assert [late for late, _ in deadlines.late([s], 1161)] == [s]


def test_a_pause_counts_for_no_sibling() -> None:
    deadlines, first, second = Deadlines(60, None), running(), waiting()
    list(deadlines.late([first, second], 100))
    deadlines.shift([second], 100, 1100)
    assert list(deadlines.late([second], 1160)) == []
    assert [s for s, _ in deadlines.late([second], 1161)] == [second]


def test_without_limits_nobody_is_late() -> None:
    assert list(Deadlines().late([waiting(), running()], 1e9)) == []
