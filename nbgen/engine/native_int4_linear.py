"""Linear layers with 4-bit weights in C++ of our own, which widens them on the way. CPU only."""

import torch

from nbgen.engine import int4_linear
from nbgen.engine.int4_linear import GROUP, Int4Linear, rounded
from nbgen.engine.linear import Numbers
from nbgen.engine.native_linear import NativeProduct, suits


class NativeInt4Linear(NativeProduct):
    """What `Int4Linear` is, for numbers of which this machine `suits` the product.

    Few rows see the rounded weights themselves; for many they are written out in the layer's own type, as there.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None) -> None:
        """`weight` is `[out, in]`; with `numbers`, as of `int4_linear.rounded`, its own are not read."""
        super().__init__(weight, bias)
        values, scales = numbers or rounded(weight)
        low, high = values.view(self.out_features, -1, 2, GROUP // 2).unbind(2)
        self._packed, self._steps = low | high << 4, scales.transpose(0, 1).contiguous()

    def _numbers(self) -> tuple[torch.Tensor, None, torch.Tensor]:
        return self._packed, None, self._steps


def int4_layer(
    weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None
) -> Int4Linear | NativeInt4Linear:
    """The faster layer of the two that this machine has for a weight that `fits`."""
    return (NativeInt4Linear if suits(weight) else Int4Linear)(weight, bias, numbers)


def fits(weight: torch.Tensor) -> bool:
    """Whether there is a layer for a weight `[out, in]` of this shape."""
    return (suits(weight) and weight.shape[1] % GROUP == 0) or int4_linear.fits(weight)
