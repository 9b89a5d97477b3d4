"""The next token of every row of scores, each row by its own parameters and seed.

The order of operations is SGLang 0.5.23's. A row's random numbers are a hash of its seed, the token's
position and the token id, so that its choice never depends on what else is in the batch. Rows that ask for nothing
special pay for nothing. Knows no tokenizer and no text.
"""

import torch

from nbgen.engine.sequence import Sequence

NO_TOKEN = -1

#: Odd 64-bit constants of splitmix64 (Steele, Lea and Flood 2014), as signed integers.
_GOLDEN, _MIX1, _MIX2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Sampler:
    """Chooses tokens. `eos_ids` are what `min_new_tokens` holds back besides a request's own stop tokens."""

    def __init__(self, eos_ids: frozenset[int] = frozenset()) -> None:
        self.eos_ids = eos_ids

    @torch.inference_mode()
    def sample(self, scores: torch.Tensor, sequences: list[Sequence]) -> list[int]:
        """A token id for each row of float32 `scores` `[rows, vocab]`; NO_TOKEN where no score is finite."""
        if not sequences:
            return []
        for row, sequence in zip(scores, sequences, strict=True):
            self._adjust(row, sequence)
        usable = torch.isfinite(scores).any(dim=-1)
        scores = scores.nan_to_num(nan=float("-inf"))
        tokens = scores.argmax(dim=-1)
        drawn = [i for i, sequence in enumerate(sequences) if not sequence.params.greedy]
        if drawn:
            rows = torch.tensor(drawn, device=scores.device)
            tokens[rows] = _draw(scores[rows], [sequences[i] for i in drawn])
        return torch.where(usable, tokens, NO_TOKEN).tolist()

    def _adjust(self, row: torch.Tensor, sequence: Sequence) -> None:
        """Penalties, held-back stop tokens and biases, in place."""
        params = sequence.params
        if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
            _penalize(row, sequence)
        if sequence.num_output < params.min_new_tokens:
            row[_inside(self.eos_ids | sequence.stop_token_ids, row)] = float("-inf")
        for token, bias in params.logit_bias.items():
            row[token] += bias


def _inside(ids: frozenset[int], row: torch.Tensor) -> torch.Tensor:
    kept = [i for i in sorted(ids) if 0 <= i < row.shape[0]]
    return torch.tensor(kept, dtype=torch.long, device=row.device)


def _penalize(row: torch.Tensor, sequence: Sequence) -> None:
    """Over tokens generated so far, never the prompt's."""
    params = sequence.params
    output = torch.tensor(sequence.output_ids, dtype=torch.long, device=row.device)
    ids, counts = output.unique(return_counts=True)
    values = row[ids] - params.frequency_penalty * counts - params.presence_penalty
    repetition = params.repetition_penalty
    row[ids] = torch.where(values < 0, values * repetition, values / repetition)


def _draw(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """One token a row from the filtered distribution, by the exponential race (equal to Gumbel-max)."""
    device = scores.device
    column = lambda values: torch.tensor(values, device=device)[:, None]  # noqa: E731
    temperature = column([float(s.params.temperature) for s in sequences])
    probabilities = torch.softmax(scores / temperature, dim=-1)
    if any(_filters(s) for s in sequences):
        probabilities = _filter(probabilities, sequences)
    seeds, positions = column([s.seed for s in sequences]), column([len(s) for s in sequences])
    return (probabilities / _exponential(seeds, positions, scores.shape[-1])).argmax(dim=-1)


def _filters(sequence: Sequence) -> bool:
    params = sequence.params
    return params.top_k != -1 or params.top_p < 1 or params.min_p > 0


def _filter(probabilities: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """top_k, top_p and min_p jointly on the same distribution; the most likely token always stays."""
    device, vocab = probabilities.device, probabilities.shape[-1]
    column = lambda values: torch.tensor(values, device=device)[:, None]  # noqa: E731
    top_k = column([vocab if s.params.top_k == -1 else s.params.top_k for s in sequences])
    top_p = column([s.params.top_p for s in sequences])
    min_p = column([s.params.min_p for s in sequences])
    ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = (torch.arange(vocab, device=device) < top_k) & (before <= top_p) & (ordered >= min_p * ordered[:, :1])
    kept[:, 0] = True
    return torch.zeros_like(probabilities).scatter(-1, ids, ordered * kept)


def _exponential(seeds: torch.Tensor, positions: torch.Tensor, vocab: int) -> torch.Tensor:
    """Exponential variates `[rows, vocab]`, a function of seed, position and token id alone."""
    tokens = torch.arange(vocab, device=seeds.device)[None]
    bits = _mix(_mix(seeds + positions * _GOLDEN) + tokens * _GOLDEN)
    uniform = (_shift(bits, 11).double() + 0.5) * 2.0**-53
    return -uniform.log()


def _mix(x: torch.Tensor) -> torch.Tensor:
    """splitmix64's finalizer; int64 arithmetic wraps around."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
