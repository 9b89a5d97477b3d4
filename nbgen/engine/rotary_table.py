"""By what heads are turned at a position (rotary embeddings, Su et al. 2021): as a model's own module says."""

from typing import NamedTuple

import torch
from torch import nn

#: Rotary positions whose frequencies depend on how long a sequence is.
BY_LENGTH = {"dynamic", "longrope"}


class Rotary(NamedTuple):
    """Each row's place `[rows]` in cosines and sines `[positions, width]`."""

    positions: torch.Tensor
    cosines: torch.Tensor
    sines: torch.Tensor


def rotary_of(rotary: nn.Module, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[positions, dim]` each, of the type of `like`."""
    cosines, sines = rotary(like, positions[None])
    return cosines[0].contiguous(), sines[0].contiguous()


class RotaryTable:
    """Cosines and sines of positions, computed by the model's own module: once, where that can be."""

    def __init__(self, rotary: nn.Module, dtype: torch.dtype) -> None:
        self._rotary, self._like = rotary, torch.empty(0, dtype=dtype)
        #: Whether they are the same ones in every step.
        self.keeps = rotary.rope_type not in BY_LENGTH
        self._table = torch.empty(0), torch.empty(0)

    def at(self, positions: list[int]) -> Rotary:
        numbers = torch.tensor(positions)
        if not self.keeps:
            return Rotary(torch.arange(len(positions)), *rotary_of(self._rotary, self._like, numbers))
        if (longest := max(positions)) >= len(self._table[0]):
            self._table = rotary_of(self._rotary, self._like, torch.arange(max(1024, 2 * longest)))
        return Rotary(numbers, *self._table)
