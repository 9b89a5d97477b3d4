"""The interface of what computes a runner's steps: transformers' forward, or our own code in place of it.

Knows no implementation.
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
        """Whose code computes the layers (`ModelInfo`)."""

    def suits(self, step: Step, items: Sequence[ScheduledSequence]) -> bool:
        """Whether it can compute this step of `items`."""

    def selects(self, items: Sequence[ScheduledSequence]) -> bool:
        """Whether its output layer gets only the rows whose scores are wanted."""

    def scores(
        self,
        step: Step,
        items: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """Scores `[rows, vocab]` of these rows of the packed tokens `ids` `[T]`, in a step that `suits`."""


class Decoded(NamedTuple):
    """`scores` `[rows, vocab]` of the next tokens, and the most likely tokens `[rows]` if a graph has found them."""

    scores: torch.Tensor
    best: torch.Tensor | None = None

    def of(self, rows: torch.Tensor | slice) -> "Decoded":
        return Decoded(self.scores[rows], None if self.best is None else self.best[rows])


class Replay(Protocol):
    """Computes decodes like earlier ones without building a new step."""

    def decode(self, rows: Sequence[DecodeRow], newest: SampledTokens | None = None) -> Decoded | None:
        """Scores of the next tokens; None if it cannot compute these rows.

        A negative token is not known to the host yet: `newest` has it on the device (`Sequence.next_ids`).
        """


def is_ids_only(items: Sequence[ScheduledSequence]) -> bool:
    """Whether a step's input is token ids only, and no request asks for routed experts."""
    return not any(map(prompt_embeds.begins, items)) and is_text_only(items)


def is_text_only(items: Sequence[ScheduledSequence]) -> bool:
    """The same for a step whose prompts may also be input embeddings."""
    return not any(map(media_encoder.begins, items)) and not any(map(asks, items))
