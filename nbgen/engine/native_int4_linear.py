"""Linear layers with 4-bit weights in C++ of our own, which dequantizes them as it multiplies. CPU only."""

import torch

from nbgen.engine import int4_linear
from nbgen.engine.int4_linear import GROUP, Int4Linear, rounded
from nbgen.engine.linear import Numbers
from nbgen.engine.native_linear import RoundedProduct, suits_rounded


class NativeInt4Linear(RoundedProduct):
    """Like `Int4Linear`, for weights that `suits_rounded`.

    For any number of rows, the weights are the dequantized ones in the layer's own type.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None) -> None:
        """`weight` is `[out, in]`; its numbers are not read if `numbers` are given, as of `int4_linear.rounded`."""
        super().__init__(weight, bias)
        values, scales = numbers or rounded(weight)
        self._packed, self._steps = packed(values), scales.transpose(0, 1).contiguous()

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._packed, "steps": self._steps}


def packed(values: torch.Tensor) -> torch.Tensor:
    """`[out, in]` of 0 to 15 as 16-bit words `[out, in / 4]`: a group's word `i` has its numbers `i`, `i + 8`, …"""
    quarters = values.view(torch.int64).view(len(values), -1, 4)  # eight numbers each, a byte each
    low, high = (quarters[..., place] | quarters[..., place + 1] << 4 for place in (0, 2))
    return torch.stack([low.view(torch.uint8), high.view(torch.uint8)], -1).view(torch.int16).flatten(1)


def int4_layer(
    weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None
) -> Int4Linear | NativeInt4Linear:
    """The faster layer of the two that this machine has for a weight that `fits`."""
    return (NativeInt4Linear if suits_rounded(weight) else Int4Linear)(weight, bias, numbers)


def fits(weight: torch.Tensor) -> bool:
    """Whether there is a layer for a weight `[out, in]` of this shape."""
    return (suits_rounded(weight) and weight.shape[1] % GROUP == 0) or int4_linear.fits(weight)
