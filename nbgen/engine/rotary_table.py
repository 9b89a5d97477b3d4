"""Cosines and sines of rotary embeddings (Su et al. 2021) by position, computed by a model's own module.

Knows no layers.
"""

import sys
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from nbgen.engine.known_code import like as runs_code_of

#: Modules with a fixed table of positions: sines before cosines, and one number for each two of a head.
KEPT = ("gptj.GPTJRotaryEmbedding", "codegen.CodeGenRotaryEmbedding")
#: Kinds of rotary embeddings whose frequencies depend on the length of a sequence.
BY_LENGTH = {"dynamic", "longrope"}


class Rotary(NamedTuple):
    """`positions` `[rows]` has the index of each row in the tables of cosines and sines `[positions, width]`."""

    positions: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor


def rotary_of(
    rotary: nn.Module, like: torch.Tensor, positions: torch.Tensor, kind: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[positions, dim]` in the type of `like`; where layers differ, those for layers of `kind`.

    Raises ValueError for a module that gives more than one row for a position.
    """
    kinds = () if kind is None else (kind,)
    try:
        made: Any = rotary(like, positions[None], *kinds)
    except IndexError:  # older versions expect positions for three dimensions
        made = rotary(like, positions.expand(3, 1, -1), *kinds)
    if isinstance(made, torch.Tensor):  # complex, one number for each two of a head
        turns = torch.cat([made, made], -1)
        made = turns.real, turns.imag
    cosines, sines = made
    if cosines.dim() != 3:
        raise ValueError("its positions have more than one dimension")
    return cosines[0].contiguous(), sines[0].contiguous()


class Stretch(NamedTuple):
    """A factor for queries: 1 plus `share` times a logarithm that grows with every `each` positions."""

    share: float
    each: int

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        return 1 + self.share * torch.log(1 + torch.floor(positions / self.each))


class RotaryTable:
    """Cosines and sines of positions as float32, computed by the model's own module, only once where possible.

    If kinds of layers have their own, a position's row has them side by side, in the order of `kinds`. The factor of
    the `stretch`, if there is one, follows its cosines.
    """

    def __init__(self, rotary: nn.Module | None, dtype: torch.dtype, stretch: Stretch | None = None) -> None:
        """Without a module no head is rotated, and the tables are empty."""
        self._rotary, self._like, self.stretch = rotary, torch.empty(0, dtype=dtype), stretch
        self._kept = rotary is not None and runs_code_of(rotary, KEPT) is not None
        kind: Any = None if rotary is None or self._kept else rotary.rope_type
        types = kind if isinstance(kind, dict) else {None: kind}
        self.kinds: list[str | None] = list(types)
        #: Whether a position has the same cosines and sines in every step.
        self.keeps = BY_LENGTH.isdisjoint(types.values())
        self._table = torch.empty(0), torch.empty(0)
        self._most = cast(Any, rotary).max_positions if self._kept else sys.maxsize
        self.turns = rotary is not None
        widths = [cosines.shape[1] for cosines, _ in self._made(torch.zeros(1, dtype=torch.long))]
        #: The slice of a position's row that belongs to each kind.
        self.parts = [slice(*ends) for ends in pairwise(accumulate(widths, initial=0))]

    def at(self, positions: list[int]) -> Rotary:
        numbers = torch.tensor(positions)
        if not self.keeps:
            return Rotary(torch.arange(len(positions)), *self._of(numbers))
        if (longest := max(positions)) >= len(self._table[0]):
            further = max(1024, longest + longest // 4)  # a sequence that is so long will grow further
            self._table = self._of(torch.arange(min(further, self._most)))
        return Rotary(numbers, *self._table)

    def _of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines `[positions, dim of all kinds]`, with one more column if queries are stretched."""
        cosines, sines = zip(*self._made(positions), *self._stretched(positions), strict=True)
        return torch.cat(cosines, 1).float(), torch.cat(sines, 1).float()

    def _stretched(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if self.stretch is None:
            return []
        made = self.stretch.at(positions).to(self._like.dtype)[:, None]
        return [(made, made)]

    def _made(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines of each kind, `[positions, dim]` each."""
        if self._rotary is None:
            return [(torch.empty(len(positions), 0), torch.empty(len(positions), 0))]
        made = [rotary_of(self._rotary, self._like, positions, kind) for kind in self.kinds]
        if self._kept:
            made = [(torch.cat([cosines, cosines], 1), torch.cat([sines, sines], 1)) for sines, cosines in made]
        return made
