"""A weight that a checkpoint holds in 8 or 4 bits, and our own layer for it. CPU only.

Knows nothing of the method that rounded it, or of how files store it.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_int4_linear import fits, int4_layer
from nbgen.engine.native_int8_linear import NativeInt8Linear, int8_layer
from nbgen.engine.native_linear import RoundedProduct, suits, suits_rounded

#: How many inputs may share a step in layers of 8 bits; the largest that fits is taken.
PARTS = (128, 64, 32)


class RoundedWeight(NamedTuple):
    """int8 `values` `[out, in]`; float32 `[out, groups]`: each group's `step`, and `middle`, the weight of its value 0.

    Groups are equal runs of consecutive inputs, unless `group_of` `[in]` (int64) has the group of each input.
    """

    values: torch.Tensor
    step: torch.Tensor
    middle: torch.Tensor
    group_of: torch.Tensor | None = None

    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """A layer of exactly these numbers that computes in `dtype`; None if we have no layer for them."""
        shape = torch.empty(self.values.shape, dtype=dtype, device="meta")
        if self.group_of is None or (order := _order(self.group_of.numpy().tobytes())) is None:
            return self._in_order(shape, bias)
        if not suits(shape):
            return None
        own = self._replace(values=self.values[:, order], group_of=self.group_of[order])
        layer = own._in_order(shape, bias)
        if not isinstance(layer, RoundedProduct):  # torch's layers cannot reorder inputs
            return None
        layer.order = order
        return layer

    def _in_order(self, shape: torch.Tensor, bias: torch.Tensor | None) -> nn.Module | None:
        """`layer` for groups of consecutive inputs."""
        blocks = self._blocks(GROUP)
        if blocks is not None and self.values.min() >= -8 and self.values.max() <= 7 and fits(shape):
            scales = torch.stack((self.step, self.middle), 2)[:, blocks].transpose(0, 1)
            return int4_layer(shape, bias, ((self.values + 8).view(torch.uint8), scales.to(shape.dtype).contiguous()))
        if self.middle.any():
            return None
        if self.step.shape[1] == 1:
            return int8_layer(shape, bias, (self.values, self.step[:, 0].contiguous()))
        blocks = next((found for size in PARTS if (found := self._blocks(size)) is not None), None)
        if blocks is None or not suits_rounded(shape):
            return None
        return NativeInt8Linear(shape, bias, (self.values, self.step[:, blocks]))

    def _blocks(self, size: int) -> torch.Tensor | None:
        """The group of each `size` consecutive inputs; None if some such run has inputs of several groups."""
        inputs, groups = self.values.shape[1], self.step.shape[1]
        if inputs % size:
            return None
        group_of = torch.arange(inputs) // (inputs // groups) if self.group_of is None else self.group_of
        blocks = group_of.view(-1, size)
        return blocks[:, 0] if bool((blocks == blocks[:, :1]).all()) else None

    def whole(self) -> torch.Tensor:
        """The unpacked weight in float32; for experts, those of all of them."""
        if self.group_of is not None:
            return self.values.float().mul_(self.step[:, self.group_of]).add_(self.middle[:, self.group_of])
        grouped = self.values.unflatten(-1, (self.step.shape[-1], -1)).float()
        return grouped.mul_(self.step[..., None]).add_(self.middle[..., None]).flatten(-2)


@lru_cache(maxsize=8)
def _order(group_of: bytes) -> torch.Tensor | None:
    """The order that sorts inputs by group; None if they are sorted. Layers share it, so rows are reordered once."""
    groups = torch.frombuffer(bytearray(group_of), dtype=torch.int64)
    return None if bool((groups.diff() >= 0).all()) else groups.argsort(stable=True).int()
