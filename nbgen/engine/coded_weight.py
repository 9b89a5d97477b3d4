"""A linear layer's weight as bitsandbytes keeps it: each one of 16 numbers, times its block's maximum. CPU only.

NF4 and FP4 (QLoRA, Dettmers et al. 2023). Knows nothing of models.
"""

from typing import NamedTuple

import torch
from torch import nn

from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_scaled_linear import BLOCK, NativeScaledLinear, fits

#: Weights decoded at a time.
AT_ONCE = 2**22


class CodedWeight(NamedTuple):
    """`words`: two weights a byte, the first in its high half; `numbers` `[16]` and `largest` `[blocks]` in float32.

    A block has `block` consecutive weights of the weight `[out, in]` in row order; the last may have fewer.
    """

    words: torch.Tensor
    numbers: torch.Tensor
    largest: torch.Tensor
    block: int
    shape: tuple[int, int]
    dtype: torch.dtype

    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """A layer with exactly these weights that computes in `dtype`; None if we have no layer for them."""
        repeats, rest = divmod(self.block, BLOCK)
        if rest or self.shape[1] % self.block or not fits(self.shape, dtype):
            return None
        largest = self.largest.repeat_interleave(repeats).view(self.shape[0], -1)
        return NativeScaledLinear(packed(self._values().view(self.shape)), largest, bias, dtype, self.numbers)

    def whole(self) -> torch.Tensor:
        """The decoded weight."""
        values = self._values()
        whole, at_once = torch.empty(len(values), dtype=self.dtype), max(1, AT_ONCE // self.block) * self.block
        blocks = zip(
            values.split(at_once), whole.split(at_once), self.largest.split(at_once // self.block), strict=True
        )
        for own, made, largest in blocks:
            made.copy_(self.numbers[own.int()] * largest.repeat_interleave(self.block)[: len(own)])
        return whole.view(self.shape)

    def _values(self) -> torch.Tensor:
        words = self.words.flatten()
        return torch.stack((words >> 4, words & 15), -1).flatten()
