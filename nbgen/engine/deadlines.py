"""How long a sequence may wait for its turn, and how long it may run. Plain Python; the clock is the caller's.

A group's sequences may wait for one another: they count as waiting only while none of the group runs.
"""

from collections.abc import Iterable, Iterator

from nbgen.engine.sequence import Sequence, SequenceStatus
from nbgen.messages import FinishReason

#: Interval at which late sequences are looked for.
LOOK_SECONDS = 0.25


class Deadlines:
    """Finds sequences that are late. All times are monotonic seconds; None means no limit."""

    def __init__(self, queue_seconds: float | None = None, run_seconds: float | None = None) -> None:
        self._queue = float("inf") if queue_seconds is None else queue_seconds
        self._run = float("inf") if run_seconds is None else run_seconds
        #: When a sequence of each group last ran.
        self._ran: dict[str, float] = {}
        self._due = 0.0

    def are_due(self, now: float) -> bool:
        """Whether it is time to look for late sequences; False for LOOK_SECONDS after True."""
        if now < self._due:
            return False
        self._due = now + LOOK_SECONDS
        return True

    def late(self, sequences: Iterable[Sequence], now: float) -> Iterator[tuple[Sequence, FinishReason]]:
        """Sequences whose time is over, and why each ends. Call it with all living sequences, a few times a second."""
        living = list(sequences)
        groups = {sequence.group for sequence in living}
        self._ran = {group: at for group, at in self._ran.items() if group in groups}
        for sequence in living:
            if sequence.status is SequenceStatus.RUNNING:
                self._ran[sequence.group] = now
        for sequence in living:
            if sequence.started is not None:
                if now - sequence.started > self._run:
                    yield sequence, _ran(self._run)
            elif now - max(sequence.arrived, self._ran.get(sequence.group, 0.0)) > self._queue:
                yield sequence, waited(self._queue)

    def shift(self, sequences: Iterable[Sequence], since: float, now: float) -> None:
        """Do not count the time from `since` to `now`, in which nothing could run; sequences may have arrived in it."""
        for sequence in sequences:
            sequence.arrived = min(sequence.arrived + now - since, now)
            if sequence.started is not None:
                sequence.started = min(sequence.started + now - since, now)
        self._ran = {group: at + now - since for group, at in self._ran.items()}


def waited(seconds: float) -> FinishReason:
    """For a request that waited so long for its turn."""
    words = f"the request waited {seconds:g} seconds for its turn, as long as one may: try again later"
    return FinishReason.failure(words, 503)


def _ran(seconds: float) -> FinishReason:
    return FinishReason(type="abort", message=f"timeout: the request ran {seconds:g} seconds, as long as one may")
