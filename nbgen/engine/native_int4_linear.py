"""Linear layers with 4-bit weights in C++ of our own, which widens them on the way. CPU only."""

import torch
from torch import nn

from nbgen.engine import int4_linear as torchs
from nbgen.engine.int4_linear import GROUP, Int4Linear, rounded
from nbgen.engine.native import function
from nbgen.engine.native_linear import NativeLinear, suits


class NativeInt4Linear(NativeLinear):
    """What `Int4Linear` is, for numbers of which this machine `suits` the product.

    Few rows see the rounded weights themselves; for many they are written out in the layer's own type, as there.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        numbers: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """`weight` is `[out, in]`; with `numbers`, as of `int4_linear.rounded`, its own are not read."""
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias, self._dtype = None, bias, weight.dtype
        values, scales = numbers or rounded(weight)
        low, high = values.view(self.out_features, -1, 2, GROUP // 2).unbind(2)
        self._packed, self._steps = low | high << 4, scales.transpose(0, 1).contiguous()
        self._multiply = function("multiply", weight.dtype)

    @property
    def nbytes(self) -> int:
        """Of the weight, its scales and middles."""
        return self._packed.nbytes + self._steps.nbytes

    def _numbers(self) -> tuple[torch.Tensor, None, torch.Tensor]:
        return self._packed, None, self._steps


def int4_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, numbers: tuple[torch.Tensor, torch.Tensor] | None = None
) -> nn.Module:
    """The faster layer of the two that this machine has for a weight that `fits`."""
    return (NativeInt4Linear if suits(weight) else Int4Linear)(weight, bias, numbers)


def fits(weight: torch.Tensor) -> bool:
    """Whether there is a layer for a weight `[out, in]` of this shape."""
    return (suits(weight) and weight.shape[1] % GROUP == 0) or torchs.fits(weight)
