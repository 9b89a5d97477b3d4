"""A linear layer's weight as bitsandbytes keeps it: one of 16 numbers each, times the largest of its block. CPU only.

NF4 and FP4 (QLoRA, Dettmers et al. 2023). Knows nothing of models.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_scaled_linear import BLOCK, NativeScaledLinear, fits

#: Weights written out at a time.
AT_ONCE = 2**22


class CodedWeight(NamedTuple):
    """`words`: two weights a byte, the first in its high half; `numbers` `[16]` and `largest` `[blocks]` in float32.

    Blocks are of as many weights as any other, row after row of the weight `[out, in]`.
    """

    words: torch.Tensor
    numbers: torch.Tensor
    largest: torch.Tensor
    shape: tuple[int, int]
    dtype: torch.dtype

    @torch.inference_mode()
    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """One of the very numbers, that computes in `dtype`; None where there is none of ours for them."""
        repeats, rest = divmod(self.shape[0] * self.shape[1] // len(self.largest), BLOCK)
        if rest or self.shape[1] % (repeats * BLOCK) or not fits(self.shape, dtype):
            return None
        largest = self.largest.repeat_interleave(repeats).view(self.shape[0], -1)
        return NativeScaledLinear(packed(self._values().view(self.shape)), largest, bias, dtype, self.numbers)

    @torch.inference_mode()
    def whole(self, count: int | None = None) -> torch.Tensor:
        """The weight, written out. A layer is no mixture, of which there may be a `count`."""
        block = self.shape[0] * self.shape[1] // len(self.largest)
        values, whole = self._values().view(-1, block), torch.empty(len(self.largest), block, dtype=self.dtype)
        for part in torch.arange(len(values)).split(max(1, AT_ONCE // block)):
            whole[part] = (self.numbers[values[part].int()] * self.largest[part, None]).to(self.dtype)
        return whole.view(self.shape)

    def products(self, module: Any, dtype: torch.dtype, *, two: bool) -> None:
        """None: a layer is no mixture."""

    def _values(self) -> torch.Tensor:
        words = self.words.flatten()
        return torch.stack((words >> 4, words & 15), -1).flatten()
