"""Sequences whose media are not encoded yet, in order of arrival; between two steps one prompt's are. No tensors."""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from nbgen.engine.endings import ended_by
from nbgen.engine.sequence import Sequence
from nbgen.errors import NbgenError
from nbgen.messages import FinishReason

#: The most sequences with encoded media that wait for room: each holds its embeddings.
AHEAD = 2

log = logging.getLogger(__name__)


class MediaQueue:
    """Gives the sequences to whoever schedules them, once they can be computed."""

    def __init__(self) -> None:
        self._sequences: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._sequences)

    def append(self, sequence: Sequence) -> None:
        self._sequences.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Drop a sequence that has ended, if it is here, and with it the memory of its media."""
        if sequence in self._sequences:
            self._sequences.remove(sequence)

    def encoded(
        self, encode: Callable[[Sequence], None], waiting: list[Sequence]
    ) -> Iterator[tuple[Sequence, FinishReason | None]]:
        """The next sequences that may join those `waiting`, each with the reason if it may not; encodes one at most."""
        room = sum(sequence.media is not None for sequence in waiting) < AHEAD
        while self._sequences and (room or self._sequences[0].media.encoded is not None):
            sequence = self._sequences.popleft()
            if sequence.media.encoded is None:
                room = False
            yield sequence, _fault(sequence, encode)


def _fault(sequence: Sequence, encode: Callable[[Sequence], None]) -> FinishReason | None:
    """Encode the sequence's media, unless another of the same prompt has; returns the reason if that fails."""
    try:
        if sequence.media.encoded is None:
            encode(sequence)
    except NbgenError as error:
        return ended_by(error)
    except Exception:  # whatever a tower raises, lack of memory too, fails this request alone
        log.exception("request %s: its media could not be encoded", sequence.rid)
        return FinishReason.failure("the media could not be encoded; the log says why", 503)
    return None
