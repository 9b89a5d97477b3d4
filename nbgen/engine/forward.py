"""What a runner asks of whatever computes its steps: transformers' forward, or code of our own in place of it.

Knows none of them.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from nbgen.engine import media_encoder, prompt_embeds
from nbgen.engine.attention import Step
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.routed_experts import asks
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.scheduler import ScheduledSequence


class Forward(Protocol):
    """Computes steps, from packed tokens to scores."""

    @property
    def layers_in(self) -> str:
        """Whose code the layers are (`ModelInfo`)."""

    def suits(self, step: Step, items: Sequence[ScheduledSequence]) -> bool:
        """Whether it can compute this step of `items`."""

    def selects(self, items: Sequence[ScheduledSequence]) -> bool:
        """Whether its layer that makes scores sees the rows alone that scores are wanted of."""

    def scores(
        self,
        step: Step,
        items: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """`[rows, vocab]` of the packed tokens `ids` `[T]` of a step that `suits`."""


class Decoded(NamedTuple):
    """`scores` `[rows, vocab]` of the next tokens, and the tokens `[rows]` of the greatest where a graph finds them."""

    scores: torch.Tensor
    best: torch.Tensor | None = None

    def of(self, rows: torch.Tensor | slice) -> "Decoded":
        return Decoded(self.scores[rows], None if self.best is None else self.best[rows])


class Replay(Protocol):
    """Computes decodes that run like others before, for which no step is made anew."""

    def decode(self, rows: Sequence[DecodeRow], newest: SampledTokens | None = None) -> Decoded | None:
        """Of the next tokens; None where it cannot.

        Negative tokens are awaited ones, which `newest` has (`Sequence.next_ids`).
        """


def is_ids_only(items: Sequence[ScheduledSequence]) -> bool:
    """Whether a step computes ids alone, and nobody looks into its layers."""
    return not any(map(prompt_embeds.begins, items)) and is_text_only(items)


def is_text_only(items: Sequence[ScheduledSequence]) -> bool:
    """The same of a step whose prompts may be given as embeddings."""
    return not any(map(media_encoder.begins, items)) and not any(map(asks, items))
