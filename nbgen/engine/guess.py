"""Guesses: a sequence as it may be a few tokens later, computed beside it as a decode like any other.

The result counts if the guess comes true (speculative decoding, Leviathan et al. 2023). A token is drawn by its seed
and position alone, so a draft is either that very token or wrong. Plain Python, no tensors.
"""

import msgspec

from nbgen.engine.sequence import Sequence
from nbgen.engine.token_counts import TokenCounts
from nbgen.engine_state import EngineStatus


class Guess(Sequence):
    """A sequence as it will be if its next tokens are these; it uses the sequence's blocks, after what is computed."""

    def __init__(self, sequence: Sequence, tokens: list[int]) -> None:
        vars(self).update(vars(sequence))
        self._sequence, self.guessed = sequence, tokens
        self.token_ids = sequence.token_ids + tokens
        self.num_computed = sequence.num_computed + len(tokens)

    @property
    def output_counts(self) -> TokenCounts:
        counts = self._sequence.output_counts.copy()
        counts.add(self.guessed)
        return counts

    def come_true(self) -> Sequence | None:
        """The sequence, with the guess's tokens counted as computed, if it has become what was guessed."""
        now = self._sequence
        if now.finish_reason or len(now) != len(self) or now.token_ids[-1] != self.token_ids[-1]:
            return None
        now.num_computed = len(self)
        return now


def guesses(sequence: Sequence, most: int) -> list[Guess]:
    """Guesses at a sequence after the next step: with one token more, with two, and so on, `most` at most.

    None if more than its ids decides what follows, or if the request asks for more than tokens; and none that its
    grammar forbids.
    """
    most = min(most, sequence.budget - sequence.num_output - 1)
    if most < 1 or sequence.logit_processor or sequence.tensors or sequence.embeds or sequence.media:
        return []
    tokens = sequence.drafts.guess(sequence.token_ids, most)
    if sequence.matcher is not None and tokens:
        try:
            tokens = tokens[: sequence.matcher.num_allowed(tokens)]
        except Exception:  # whatever a back end raises, it raises again if that token is sampled
            return []
    return [Guess(sequence, tokens[:count]) for count in range(1, len(tokens) + 1)]


class Verified:
    """How many guesses there were, and how many came true."""

    def __init__(self) -> None:
        self._drafted = self._accepted = self._steps = 0
        self._true: list[Guess] = []

    def sequence(self, row: Sequence) -> Sequence | None:
        """The sequence whose next token was sampled in this row of a step; None if the row is a wrong guess."""
        if not isinstance(row, Guess):
            return row
        found = row.come_true()
        self._drafted += 1
        self._steps += len(row.guessed) == 1
        if found is not None:
            self._accepted += 1
            self._true.append(row)
        return found

    def came_true(self) -> list[Guess]:
        """The guesses that were right since this was last asked."""
        found, self._true = self._true, []
        return found

    def told(self, status: EngineStatus) -> EngineStatus:
        """The status with these numbers."""
        return msgspec.structs.replace(
            status, drafted_tokens=self._drafted, accepted_tokens=self._accepted, draft_steps=self._steps
        )
