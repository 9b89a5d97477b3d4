"""By what heads are turned at a position (rotary embeddings, Su et al. 2021): as a model's own module says.

Knows no layers.
"""

import sys
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from nbgen.engine.known_code import like as runs_code_of

#: Whose numbers are kept for so many positions, sines before cosines, and one for two numbers of a head.
KEPT = ("gptj.GPTJRotaryEmbedding", "codegen.CodeGenRotaryEmbedding")
#: Rotary positions whose frequencies depend on how long a sequence is.
BY_LENGTH = {"dynamic", "longrope"}


class Rotary(NamedTuple):
    """Each row's place `[rows]` in cosines and sines `[positions, width]`."""

    positions: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor


def rotary_of(
    rotary: nn.Module, like: torch.Tensor, positions: torch.Tensor, kind: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`[positions, dim]` each, of the type of `like`; where layers differ, those for layers of this `kind`.

    Raises ValueError for what a position has no one row of.
    """
    kinds = () if kind is None else (kind,)
    try:
        made: Any = rotary(like, positions[None], *kinds)
    except IndexError:  # older versions want a row for each dimension of a position
        made = rotary(like, positions.expand(3, 1, -1), *kinds)
    if isinstance(made, torch.Tensor):  # complex, one for two numbers of a head
        turns = torch.cat([made, made], -1)
        made = turns.real, turns.imag
    cosines, sines = made
    if cosines.dim() != 3:
        raise ValueError("its positions have more than one dimension")
    return cosines[0].contiguous(), sines[0].contiguous()


class Stretch(NamedTuple):
    """By what queries are multiplied, which grows by a `share` of a logarithm with every so many positions (`each`)."""

    share: float
    each: int

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        return 1 + self.share * torch.log(1 + torch.floor(positions / self.each))


class RotaryTable:
    """Cosines and sines of positions as float32, computed by the model's own module: once, where that can be.

    Where kinds of layers have their own, these stand side by side in a position's row, in the order of `kinds`. Behind
    its cosines is what a `stretch` makes of a position, if there is one.
    """

    def __init__(self, rotary: nn.Module | None, dtype: torch.dtype, stretch: Stretch | None = None) -> None:
        """Without a module nothing is turned, and there are none."""
        self._rotary, self._like, self.stretch = rotary, torch.empty(0, dtype=dtype), stretch
        self._kept = rotary is not None and runs_code_of(rotary, KEPT) is not None
        kind: Any = None if rotary is None or self._kept else rotary.rope_type
        types = kind if isinstance(kind, dict) else {None: kind}
        self.kinds: list[str | None] = list(types)
        #: Whether they are the same ones in every step.
        self.keeps = BY_LENGTH.isdisjoint(types.values())
        self._table = torch.empty(0), torch.empty(0)
        self._most = cast(Any, rotary).max_positions if self._kept else sys.maxsize
        self.turns = rotary is not None
        widths = [cosines.shape[1] for cosines, _ in self._made(torch.zeros(1, dtype=torch.long))]
        #: Where in a position's row the numbers of each kind are.
        self.parts = [slice(*ends) for ends in pairwise(accumulate(widths, initial=0))]

    def at(self, positions: list[int]) -> Rotary:
        numbers = torch.tensor(positions)
        if not self.keeps:
            return Rotary(torch.arange(len(positions)), *self._of(numbers))
        if (longest := max(positions)) >= len(self._table[0]):
            further = max(1024, longest + longest // 4)  # who is so far goes further
            self._table = self._of(torch.arange(min(further, self._most)))
        return Rotary(numbers, *self._table)

    def _of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[positions, dim of all kinds]` each, and one more where queries are stretched."""
        cosines, sines = zip(*self._made(positions), *self._stretched(positions), strict=True)
        return torch.cat(cosines, 1).float(), torch.cat(sines, 1).float()

    def _stretched(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if self.stretch is None:
            return []
        made = self.stretch.at(positions).to(self._like.dtype)[:, None]
        return [(made, made)]

    def _made(self, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each kind, `[positions, dim]` each."""
        if self._rotary is None:
            return [(torch.empty(len(positions), 0), torch.empty(len(positions), 0))]
        made = [rotary_of(self._rotary, self._like, positions, kind) for kind in self.kinds]
        if self._kept:
            made = [(torch.cat([cosines, cosines], 1), torch.cat([sines, sines], 1)) for sines, cosines in made]
        return made
