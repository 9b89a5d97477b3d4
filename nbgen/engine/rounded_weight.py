"""A weight that a checkpoint holds in 8 or 4 bits, and the layer of ours for it. CPU only.

Knows nothing of who rounded it, or how it lies in files.
"""

from typing import NamedTuple

import torch
from torch import nn

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_int4_linear import fits, int4_layer
from nbgen.engine.native_int8_linear import NativeInt8Linear, int8_layer
from nbgen.engine.native_linear import suits
from nbgen.engine.native_scaled_linear import BLOCK


class RoundedWeight(NamedTuple):
    """`[out, in]` of int8 `values`, and float32 `[out, groups]`: a group's step, and its weight that is 0.

    A group is as many inputs as any other, side by side, unless `group_of` has the group of each input.
    """

    values: torch.Tensor
    step: torch.Tensor
    middle: torch.Tensor
    group_of: torch.Tensor | None = None

    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """One of the very numbers, that computes in `dtype`; None where there is none of ours for them."""
        if self.group_of is not None:
            return None
        shape = torch.empty(self.values.shape, dtype=dtype, device="meta")
        size = self.values.shape[1] // self.step.shape[1]
        repeats, rest = divmod(size, GROUP)
        if not rest and self.values.min() >= -8 and self.values.max() <= 7 and fits(shape):
            scales = torch.stack((self.step, self.middle), 2).repeat_interleave(repeats, 1).transpose(0, 1)
            return int4_layer(shape, bias, ((self.values + 8).view(torch.uint8), scales.to(dtype).contiguous()))
        if self.middle.any():
            return None
        if self.step.shape[1] == 1:
            return int8_layer(shape, bias, (self.values, self.step[:, 0].contiguous()))
        repeats, rest = divmod(size, BLOCK)
        if rest or not suits(shape):
            return None
        return NativeInt8Linear(shape, bias, (self.values, self.step.repeat_interleave(repeats, 1)))

    def whole(self) -> torch.Tensor:
        """The weight in float32, of experts all of theirs."""
        if self.group_of is not None:
            return self.values.float().mul_(self.step[:, self.group_of]).add_(self.middle[:, self.group_of])
        grouped = self.values.unflatten(-1, (self.step.shape[-1], -1)).float()
        return grouped.mul_(self.step[..., None]).add_(self.middle[..., None]).flatten(-2)
