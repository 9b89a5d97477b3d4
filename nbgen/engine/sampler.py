"""The next token of every row of scores, each row by its own parameters and seed.

The order of operations is SGLang 0.5.23's. Rows that ask for nothing special cost nothing extra. On a GPU the host only
launches kernels and reads no result, except in custom processors. Knows no tokenizer and no text.
"""

import numpy as np
import torch

from nbgen.engine.adjustments import adjust, adjusts
from nbgen.engine.backends import has_kernels
from nbgen.engine.draws import argmax, draw
from nbgen.engine.logit_processors import LogitProcessors
from nbgen.engine.native_draws import NativeDraws
from nbgen.engine.sampled_tokens import NO_TOKEN
from nbgen.engine.sequence import Sequence
from nbgen.engine.upload import upload


class Sampler:
    """Chooses tokens. `min_new_tokens` holds back `eos_ids` besides a request's own stop tokens.

    `native`, if given, draws from scores that are in the host's memory.
    """

    def __init__(
        self,
        eos_ids: frozenset[int] = frozenset(),
        processors: LogitProcessors | None = None,
        native: NativeDraws | None = None,
    ) -> None:
        self.eos_ids = eos_ids
        self._processors = processors
        self._native = native

    @torch.inference_mode()
    def sample(self, scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
        """A token id `[rows]` for each row of float32 `scores` `[rows, vocab]`; NO_TOKEN where no score is finite."""
        if not sequences:
            return scores.new_empty(0, dtype=torch.long)
        adjust(scores, sequences, self.eos_ids)
        if self._processors:
            self._processors.apply(scores, sequences)
        if scores.is_cpu:
            if (best := likeliest(scores)) is not None:
                return self._choose(scores, sequences, best)
        elif has_kernels(scores.device):
            from nbgen.engine.draw_kernel import draw_rows  # only where there is a GPU

            return draw_rows(scores, sequences, NO_TOKEN)
        usable = torch.isfinite(scores).any(dim=-1)
        scores = scores.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
        return torch.where(usable, self._choose(scores, sequences), NO_TOKEN)

    def close(self) -> None:
        """End the threads that clients' processors run in."""
        if self._processors:
            self._processors.close()

    def _choose(
        self, scores: torch.Tensor, sequences: list[Sequence], best: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A token for each row. `best` `[rows]`, if given, are the likeliest tokens, whose scores are then finite."""
        drawn = [i for i, sequence in enumerate(sequences) if not sequence.params.greedy]
        if best is None and len(drawn) == len(sequences):
            return draw(scores, sequences)
        tokens = argmax(scores) if best is None else best
        if drawn:
            rows, own = upload(drawn, scores.device), [sequences[i] for i in drawn]
            native = None if best is None else self._native
            tokens[rows] = draw(scores[rows], own) if native is None else native.draw(scores, drawn, own)
        return tokens


def likeliest(scores: torch.Tensor) -> torch.Tensor | None:
    """The tokens `[rows]` of the greatest `scores` `[rows, vocab]`; None on a GPU, or if one of these is not finite."""
    if not scores.is_cpu:
        return None
    scores = scores.float()
    best = argmax(scores)  # a NaN wins every maximum
    return best if np.isfinite(scores.numpy()[np.arange(len(best)), best.numpy()]).all() else None


def takes_the_best(sequence: Sequence) -> bool:
    """Whether the sequence takes the token of its greatest unchanged score, and nobody asks for the scores."""
    watched = sequence.logprobs or sequence.tensors
    changed = sequence.matcher or sequence.logit_processor or adjusts(sequence)
    return sequence.params.greedy and not (watched or changed)
