"""Which sequences compute how many tokens in the next step. Plain Python, no tensors, no clock.

Decodes come first, then prefills in chunks while the step has room; sequences wait by priority, then in order of
arrival, and are admitted by what fits now. When blocks run out the last running sequence of that order is preempted: it
gives its blocks back, waits at its place, and later computes its tokens again (vLLM's recompute preemption, Kwon et al.
2023, section 4.5). When many prompts come at once and nothing else runs, each sequence gets its first token before any
gets its second: steps of a few prompt tokens and a few decodes would make everyone wait longer.
"""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from nbgen.engine.block_manager import BlockManager
from nbgen.engine.guess import Guess, guesses
from nbgen.engine.mixed_chunk import WHOLE, MixedChunk
from nbgen.engine.sequence import Sequence, SequenceStatus
from nbgen.engine_state import EngineStatus

_rank = attrgetter("rank")

#: No shortage of memory makes `prefill_chunk` smaller than this.
LEAST_CHUNK = 128
#: After so many steps without a shortage, a `prefill_chunk` that was halved is doubled.
CALM = 1000


class ScheduledSequence(NamedTuple):
    """The sequence's next `num_tokens` uncomputed tokens. It samples if they are all it has."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.num_tokens == self.sequence.num_uncomputed


def packed(batch: Iterable[ScheduledSequence]) -> Iterator[tuple[int, ScheduledSequence]]:
    """Each of the batch's items with the number of its first row; rows are the items' tokens, one after another."""
    start = 0
    for item in batch:
        yield start, item
        start += item.num_tokens


class Scheduler:
    """Waiting and running sequences, both lists in order of rank, and the choice between them."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_running: int,
        prefill_chunk: int | None,
        mixed_chunk: MixedChunk | None = None,
        long_after: int | None = None,
        draft_tokens: int = 0,
    ) -> None:
        """A step has at most `prefill_chunk` prompt tokens, and beside decodes no more than `mixed_chunk` says. None
        cuts no prompt, and computes one a step.

        A sequence of more than `long_after` tokens has other keys than a shorter one, from its first token on. All
        decodes of a step together have at most `draft_tokens` guesses beside them.
        """
        self.blocks = blocks
        self.max_running = max_running
        self.cuts_prompts = prefill_chunk is not None
        self.prefill_chunk = WHOLE if prefill_chunk is None else prefill_chunk
        self._widest_chunk = self.prefill_chunk
        self.mixed_chunk = mixed_chunk or MixedChunk()
        self.long_after = WHOLE if long_after is None else long_after
        self.draft_tokens = draft_tokens
        self._arrivals = itertools.count()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        #: The rank of a sequence that waits for blocks, and how many were free when it was tried. It is tried again
        #: when more are free, or after a step with prompt tokens: more of its prompt may be cached by then.
        self._crowded: tuple[tuple[int, int], int] | None = None
        #: One of these makes steps fail. The first of them runs alone, until it has gained a token.
        self.suspects: list[Sequence] = []
        #: Steps in a row that failed for want of memory.
        self._shortages = 0
        #: Whether sequences have run one by one since there were last `CALM` steps without a shortage.
        self._alone_was_tried = False
        #: Steps without a shortage since `prefill_chunk` last changed.
        self._calm = 0
        self.preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def is_roomy(self) -> bool:
        """Whether all running sequences can go on with one more token each: none has to wait or begin anew."""
        fit = len(self.running) <= self.blocks.num_free and all(len(s) != self.long_after for s in self.running)
        return fit and not self.suspects

    def fits(self, sequence: Sequence) -> bool:
        """Whether the blocks can hold the sequence alone, with the longest answer that it may have."""
        longest = sequence.num_prompt + max(1, sequence.budget)
        return longest <= self.blocks.num_blocks * self.blocks.block_size

    def add(self, sequence: Sequence) -> None:
        """Let the sequence wait for its turn. It must be one that the blocks can hold."""
        self._name(sequence)
        sequence.rank = (-sequence.priority, next(self._arrivals))
        bisect.insort(self.waiting, sequence, key=_rank)
        self.blocks.arrive(sequence, self.running)

    def finish(self, sequence: Sequence) -> None:
        """Take the sequence out, wherever it is, and its blocks back."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        if sequence in self.suspects:
            self.suspects.remove(sequence)
        self._give_back(sequence)
        sequence.status = SequenceStatus.FINISHED

    def schedule(self, now: float = math.inf) -> list[ScheduledSequence]:
        """The next step's batch, empty when nothing waits or runs; `now` is in monotonic seconds.

        What `blocks.take_copies` gives is to be copied before the batch is computed; `computed` is called after.
        """
        patient = self.mixed_chunk.patience and self._has_burst(now)
        if patient and (batch := self._batch(self._decodes(most=0))):
            return batch
        decodes = self._decodes()
        batch = self._batch(decodes)
        return batch + self._guesses(decodes) if batch else self._untangle()

    def _batch(self, decodes: list[Sequence]) -> list[ScheduledSequence]:
        """These decodes, and as much of prompts as there is room for."""
        batch = [ScheduledSequence(sequence, 1) for sequence in decodes]
        begun = [s for s in self._taking_turns(self.running) if s.num_uncomputed > 1]
        room = self._room(batch, begun)
        for sequence in begun:
            room -= self._prefill(sequence, room, batch)
        while room > 0 and len(self.running) < self.max_running:
            first = next(iter(self._taking_turns(self.waiting)), None)
            if first is None or not self._admit(first):
                break
            room -= self._prefill(first, room, batch)
        return batch

    def _has_burst(self, now: float) -> bool:
        """Whether prompts that each fit into a step are still to be computed, and all that decode have just begun."""
        begun = [s for s in self.running if s.num_uncomputed == 1 and s.num_output]
        since = now - self.mixed_chunk.patience
        if self.suspects or any(s.num_output > 1 or (s.started or 0.0) <= since for s in begun):
            return False
        prompts = [s for s in itertools.chain(self.running, self.waiting) if s.num_uncomputed > 1]
        fit = all(s.num_uncomputed <= self.prefill_chunk for s in prompts)
        return fit and bool(prompts) and any(s.streamed for s in begun)

    @property
    def num_prefill(self) -> int:
        """How many tokens of prompts are still to be computed, running ones' included."""
        sequences = itertools.chain(self.running, self.waiting)
        return sum(s.num_uncomputed for s in sequences if s.num_uncomputed > 1)

    def preempt_all(self) -> None:
        """Preempt all running sequences."""
        while self.running:
            self._preempt(self.running[-1])

    def failed(self, *, short: bool) -> Sequence | None:
        """The sequence that must end, if any, after a step that failed; `short`: for want of memory.

        After another fault, running sequences go on one by one, and the one that fails alone must end. When memory is
        short, the step is tried again; then steps become smaller; then sequences go on one by one, too. If it is still
        short when they run together again, the one that came last must end. The caller calls `preempt_all` next.
        """
        alone = next(iter(self.suspects), None)
        if not short:
            self.suspects = self.suspects or list(self.running)
            return alone
        self._shortages, self._calm = self._shortages + 1, 0
        if self._shortages == 1 or self._narrow():
            return None
        if alone or self._alone_was_tried:
            return alone or next(reversed(self.running), None)
        self.suspects, self._alone_was_tried = list(self.running), True
        return None

    def succeeded(self, sampled: list[Sequence]) -> None:
        """A step succeeded, and these sequences gain a token by it."""
        self._shortages, self._calm = 0, self._calm + 1
        if self._calm >= CALM:
            self.prefill_chunk, self._calm = min(2 * self.prefill_chunk, self._widest_chunk), 0
            self._alone_was_tried = False
        if self.suspects:
            self.suspects = [suspect for suspect in self.suspects if suspect not in sampled]

    def status(self) -> EngineStatus:
        """Its part of the engine's status."""
        cache = self.blocks.cache
        return EngineStatus(
            running=len(self.running),
            blocks_total=self.blocks.num_blocks,
            blocks_free=self.blocks.num_free,
            blocks_cached=cache.num_blocks,
            snapshots_total=cache.snapshots.size,
            snapshots_kept=len(cache.snapshots),
            preemptions=self.preemptions,
        )

    def computed(self, batch: list[ScheduledSequence]) -> None:
        """The batch has been computed: its tokens have their keys and values."""
        self.blocks.copied()
        for sequence, num_tokens in batch:
            if sequence.num_uncomputed > 1 or not sequence.num_output:
                self._crowded = None
            if not isinstance(sequence, Guess):
                sequence.num_computed += num_tokens
                self.blocks.share(sequence)

    def _narrow(self) -> bool:
        """Halve the prompt tokens of a step; False where they are few already."""
        if not self.cuts_prompts or self.prefill_chunk <= LEAST_CHUNK:
            return False
        self.prefill_chunk //= 2
        return True

    def _room(self, decodes: list[ScheduledSequence], begun: list[Sequence]) -> int:
        """How many prompt tokens the step may have beside these decodes; `begun` are prompts that go on."""
        if not self.cuts_prompts or not any(item.sequence.streamed for item in decodes):
            return self.prefill_chunk
        context = max((sequence.num_computed for sequence in begun), default=0)
        return min(self.prefill_chunk, self.mixed_chunk.tokens(len(decodes), context))

    def _untangle(self) -> list[ScheduledSequence]:
        """Half-computed prompts hold all blocks: preempt the last until one before it can go on."""
        if not self.running:
            return []
        self._preempt(self.running[-1])
        return self.schedule()

    def _decodes(self, most: int = WHOLE) -> list[Sequence]:
        """Those that gain a token in the next step, with the blocks for it, if they have at most `most`."""
        found = []
        for sequence in [s for s in self.running if self._has_grown_long(s)]:
            self._stop_running(sequence)  # what is computed of it serves short ones only
        running = self._taking_turns(self.running)
        for sequence in [s for s in running if s.num_uncomputed == 1 and s.num_output <= most]:
            if sequence.status is SequenceStatus.RUNNING and self._make_room(sequence):
                self.blocks.allocate(sequence, len(sequence))
                found.append(sequence)
        return found

    def _guesses(self, decodes: list[Sequence]) -> list[ScheduledSequence]:
        """Guesses at the decodes' next tokens, computed beside them. They get blocks last, after everyone else."""
        most = 0 if self.suspects else self.draft_tokens // max(1, len(decodes))
        found = (guess for sequence in decodes if most for guess in self._guesses_of(sequence, most))
        return [ScheduledSequence(guess, 1) for guess in found]

    def _guesses_of(self, sequence: Sequence, most: int) -> list[Guess]:
        """Up to `most` guesses at the sequence's next tokens, as far as there are blocks for them."""
        if not sequence.namespace.long:
            most = min(most, self.long_after - len(sequence))
        found = guesses(sequence, most)
        while found and not self.blocks.can_allocate(sequence, len(found[-1])):
            found.pop()
        if found:
            self.blocks.allocate(sequence, len(found[-1]))
        return found

    def _prefill(self, sequence: Sequence, room: int, batch: list[ScheduledSequence]) -> int:
        """Put the sequence's next chunk into the batch if it fits; how much of the room it takes.

        A prompt that is not cut takes all of it.
        """
        tokens = min(sequence.num_uncomputed, room, sequence.max_chunk if self.cuts_prompts else WHOLE)
        end = sequence.chunk_end(sequence.num_computed + tokens)
        tokens = end - sequence.num_computed
        if tokens <= 0 or not self._has_room(sequence, end):
            return 0
        self.blocks.allocate(sequence, end)
        batch.append(ScheduledSequence(sequence, tokens))
        return tokens if self.cuts_prompts else room

    def _admit(self, sequence: Sequence) -> bool:
        """Let a waiting sequence run, with what is cached of it; False if it must go on waiting."""
        if self._crowded and self._crowded[0] == sequence.rank and self.blocks.num_free <= self._crowded[1]:
            return False
        self.blocks.reuse(sequence)
        crowded = not self._has_room(sequence, len(sequence) + 1)
        if crowded or self.blocks.is_coming(sequence, self.running):
            self._give_back(sequence)
            self._crowded = (sequence.rank, self.blocks.num_free) if crowded else None
            return False
        self.waiting.remove(sequence)
        self.blocks.admit(sequence, self.waiting)
        if sequence.started is None:  # what is cached later may be its own
            sequence.cached_tokens = sequence.num_computed
        bisect.insort(self.running, sequence, key=_rank)
        sequence.status = SequenceStatus.RUNNING
        return True

    def _taking_turns(self, sequences: list[Sequence]) -> list[Sequence]:
        """Those that may be in the next step: of suspects, only the first."""
        return [s for s in sequences if s is self.suspects[0]] if self.suspects else sequences

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt the last until the sequence's next token fits; False if it was itself the last."""
        while not self._has_room(sequence, len(sequence)):
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _has_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether there are blocks for the sequence's first tokens, if need be those that wrong guesses left over."""
        if self.blocks.can_allocate(sequence, num_tokens):
            return True
        for other in self.running:
            self.blocks.cut(other)
        return self.blocks.can_allocate(sequence, num_tokens)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._stop_running(sequence)

    def _name(self, sequence: Sequence) -> None:
        """Let a sequence that is computed anew share prefixes with long ones, if it has grown long."""
        if self._has_grown_long(sequence):
            sequence.namespace = sequence.namespace._replace(long=True)

    def _has_grown_long(self, sequence: Sequence) -> bool:
        return len(sequence) > self.long_after and not sequence.namespace.long

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        self._name(sequence)
        sequence.status = SequenceStatus.WAITING
        bisect.insort(self.waiting, sequence, key=_rank)

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.free(sequence)
        sequence.num_computed = 0
