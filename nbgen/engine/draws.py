"""Random tokens from filtered distributions, each row's random numbers a hash of its seed, position and token ids.

So a row's choice never depends on what else is in the batch. Our own C++ (`native_draws`) and a kernel (`draw_kernel`)
make the same choices faster: this is the reference, and serves where neither can. The filters rarely keep more than a
few hundred tokens: the CPU looks at the most likely ones first, and at the whole vocabulary only if they were not
enough. A GPU would have to wait for that answer, so there a row's parameters decide. Knows no penalties and no text.
"""

from collections.abc import Callable
from typing import Any

import torch

from nbgen.engine.sequence import Sequence
from nbgen.engine.upload import upload

#: Draws tokens `[rows]` from probabilities `[rows, vocab]`.
Race = Callable[[torch.Tensor, list[Sequence]], torch.Tensor]

#: Most likely tokens that the filters look at first.
CANDIDATES = 256
#: Random numbers made at once on the CPU, so that they stay in its second-level cache.
AT_ONCE = 1 << 15

HOTTEST = 1e30

#: Odd 64-bit constants of splitmix64 (Steele, Lea and Flood 2014); below as signed integers.
SPLITMIX64 = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_GOLDEN, _MIX1, _MIX2 = (each - 2**64 for each in SPLITMIX64)


def draw(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """A token `[rows]` for each row of float32 `scores` `[rows, vocab]`, by its sequence's temperature and filters."""
    probabilities = torch.softmax(scores / _column([temperature(s) for s in sequences], scores), dim=-1)
    races = [_race_of(sequence, may_look=scores.is_cpu) for sequence in sequences]
    if len(set(races)) == 1:
        return races[0](probabilities, sequences)
    tokens = scores.new_empty(len(sequences), dtype=torch.long)
    for race in dict.fromkeys(races):
        mine = [i for i, other in enumerate(races) if other is race]
        rows = upload(mine, scores.device)
        tokens[rows] = race(probabilities[rows], [sequences[i] for i in mine])
    return tokens


def temperature(sequence: Sequence) -> float:
    """The sequence's temperature, at most HOTTEST: float32 scores can be divided by it, and more has the same effect.

    It is never too low for that: sequences with such temperatures are greedy.
    """
    given = sequence.params.temperature
    return min(1.0 if given is None else given, HOTTEST)


def argmax(values: torch.Tensor) -> torch.Tensor:
    """The index `[rows]` of each row's largest value, the lowest of equals. numpy's is the fast one on the CPU."""
    return torch.from_numpy(values.numpy().argmax(-1)) if values.device.type == "cpu" else values.argmax(dim=-1)


def _race_of(sequence: Sequence, *, may_look: bool) -> Race:
    """The fastest race for the row's filters; `may_look`: the host may read how many tokens they keep."""
    params = sequence.params
    if params.top_k == -1 and params.top_p == 1 and params.min_p == 0:
        return _race_all
    if may_look:
        return _race_likely
    return _race_few if params.top_k is not None and 0 < params.top_k <= CANDIDATES else _race_sorted


def _race_few(probabilities: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    return _race_best(probabilities, sequences, min(CANDIDATES, probabilities.shape[-1]))[0]


def _race_sorted(probabilities: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    return _race_best(probabilities, sequences, probabilities.shape[-1])[0]


def _race_likely(probabilities: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    vocab = probabilities.shape[-1]
    tokens, ended = _race_best(probabilities, sequences, min(CANDIDATES, vocab))
    open_rows = [] if vocab <= CANDIDATES else (~ended).nonzero()[:, 0].tolist()
    if open_rows:
        tokens[open_rows], _ = _race_best(probabilities[open_rows], [sequences[i] for i in open_rows], vocab)
    return tokens


def _race_best(probabilities: torch.Tensor, sequences: list[Sequence], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A token of the `count` most likely after top_k, top_p and min_p, and whether the filters drop the last of them.

    The filters act jointly on the same distribution; the most likely token always stays.
    """
    top_k = _column([count if s.params.top_k == -1 else s.params.top_k for s in sequences], probabilities)
    top_p = _column([s.params.top_p for s in sequences], probabilities)
    min_p = _column([s.params.min_p for s in sequences], probabilities)
    ordered, ids = probabilities.topk(count)
    before = ordered.cumsum(dim=-1) - ordered
    ranks = torch.arange(count, device=ordered.device)
    kept = (ranks < top_k) & (before <= top_p) & (ordered >= min_p * ordered[:, :1])
    kept[:, 0] = True
    winners = argmax(ordered * kept / _exponential(sequences, ids))
    return ids.gather(1, winners[:, None])[:, 0], ~kept[:, -1]


def _race_all(probabilities: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """The exponential race (equal to Gumbel-max) among all tokens."""
    ids = torch.arange(probabilities.shape[-1], device=probabilities.device)[None]
    rows = max(1, AT_ONCE // ids.shape[1]) if ids.device.type == "cpu" else len(sequences)
    return torch.cat(
        [
            argmax(part / _exponential(sequences[i * rows : (i + 1) * rows], ids))
            for i, part in enumerate(probabilities.split(rows))
        ]
    )


def _exponential(sequences: list[Sequence], ids: torch.Tensor) -> torch.Tensor:
    """Exponential variates `[rows, tokens]` for token ids `[rows or 1, tokens]`."""
    seeds, positions = _column([s.seed for s in sequences], ids), _column([len(s) for s in sequences], ids)
    bits = _mix(_mix(seeds + positions * _GOLDEN) + ids * _GOLDEN)
    uniform = (_shift(bits, 11).double() + 0.5) * 2.0**-53
    return -uniform.log()


def _column(values: list[Any], like: torch.Tensor) -> torch.Tensor:
    return upload(values, like.device)[:, None]


def _mix(x: torch.Tensor) -> torch.Tensor:
    """splitmix64's finalizer; int64 arithmetic wraps around."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
