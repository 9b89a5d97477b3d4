"""Linear layers with 8-bit weights in C++ of our own, which widens them on the way. CPU only."""

import torch
from torch import nn

from nbgen.engine.int8_linear import Int8Linear, rounded
from nbgen.engine.native import function
from nbgen.engine.native_linear import NativeLinear, suits


class NativeInt8Linear(NativeLinear):
    """What `Int8Linear` is, for numbers of which this machine `suits` the product."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        numbers: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """`weight` is `[out, in]`; with `numbers`, as of `rounded`, its own are not read."""
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias, self._dtype = None, bias, weight.dtype
        self._values, self._scale = (tensor.contiguous() for tensor in numbers or rounded(weight))
        self._multiply = function("multiply", weight.dtype)

    @property
    def nbytes(self) -> int:
        """Of the weight and its scales."""
        return self._values.nbytes + self._scale.nbytes

    def _numbers(self) -> tuple[torch.Tensor, torch.Tensor, None]:
        return self._values, self._scale, None


def int8_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, numbers: tuple[torch.Tensor, torch.Tensor] | None = None
) -> nn.Module:
    """The faster layer of the two that this machine has for the weight."""
    return (NativeInt8Linear if suits(weight) else Int8Linear)(weight, bias, numbers)
