"""Changes requests' scores before a token is chosen: penalties, logit bias, and forbidden tokens.

Each kind is applied to all rows at once, on a GPU without waiting for a result; what no request asks for costs nothing.
The order is SGLang 0.5.23's. Knows neither grammars nor custom processors.
"""

from collections.abc import Iterable

import numpy as np
import torch

from nbgen.engine.sequence import Sequence
from nbgen.engine.upload import upload
from nbgen.engine.word_tokens import forbidden
from nbgen.sampling_params import SamplingParams

Indices = tuple[int, ...] | np.ndarray


def adjust(scores: torch.Tensor, sequences: list[Sequence], eos_ids: frozenset[int]) -> None:
    """Change `scores` `[rows, vocab]` in place; before `min_new_tokens`, `eos_ids` and stop tokens are forbidden."""
    asking = [(row, sequence) for row, sequence in enumerate(sequences) if adjusts(sequence)]
    if not asking:
        return
    _penalize(scores, [(row, s) for row, s in asking if _penalizes(s.params) and s.num_output + s.num_given])
    biases = [(row, token, bias) for row, s in asking for token, bias in s.params.logit_bias.items()]
    if biases:
        rows, ids, values = zip(*biases, strict=True)
        cells = _cells(scores, rows, ids)
        scores[cells] = scores[cells] + upload(values, scores.device, scores.dtype)
    banned = [(row, token) for row, s in asking for token in _banned(s, eos_ids, scores.shape[-1])]
    if banned:
        scores[_cells(scores, *zip(*banned, strict=True))] = scores.new_full((len(banned),), float("-inf"))


def adjusts(sequence: Sequence) -> bool:
    """Whether the sequence asks for any of these changes."""
    params = sequence.params
    return bool(_penalizes(params) or params.min_new_tokens or params.logit_bias or sequence.bad_words)


def _penalizes(params: SamplingParams) -> bool:
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1)


def _penalize(scores: torch.Tensor, asking: list[tuple[int, Sequence]]) -> None:
    """Penalize the tokens generated so far, never the prompt's."""
    if not asking:
        return
    found = [s.output_counts.arrays() for _, s in asking]
    sizes = [len(ids) for ids, _ in found]
    rows, frequency, presence, repetition = np.repeat([_penalties(*each) for each in asking], sizes, axis=0).T
    ids, counts = (np.concatenate(part) for part in zip(*found, strict=True))
    cells = _cells(scores, rows, ids)
    less, factor = upload(np.stack([frequency * counts + presence, repetition]), scores.device, scores.dtype)
    values = scores[cells] - less
    scores[cells] = torch.where(values < 0, values * factor, values / factor)


def _penalties(row: int, sequence: Sequence) -> tuple[float | None, ...]:
    params = sequence.params
    return row, params.frequency_penalty, params.presence_penalty, params.repetition_penalty


def _banned(sequence: Sequence, eos_ids: frozenset[int], vocab: int) -> Iterable[int]:
    """Tokens that must not come next, among them end tokens before `min_new_tokens`."""
    early = sequence.num_output < sequence.params.min_new_tokens
    ends = eos_ids | sequence.stop_token_ids if early else frozenset()
    longest = max(map(len, sequence.bad_words), default=0)
    words = forbidden(sequence.bad_words, sequence.last_output(longest)) if longest else frozenset()
    return (token for token in ends | words if 0 <= token < vocab)


def _cells(scores: torch.Tensor, rows: Indices, ids: Indices) -> tuple[torch.Tensor, torch.Tensor]:
    places = upload(np.array([rows, ids], np.int64), scores.device)
    return places[0], places[1]
