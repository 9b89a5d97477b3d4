"""Linear layers with 8-bit weights in C++ of our own, which dequantizes them as it multiplies. CPU only."""

import torch

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.int8_linear import Int8Linear, rounded
from nbgen.engine.linear import Numbers
from nbgen.engine.native_linear import RoundedProduct, suits_rounded


class NativeInt8Linear(RoundedProduct):
    """Like `Int8Linear`, for weights that `suits_rounded`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None) -> None:
        """`weight` is `[out, in]`; its numbers are not read if `numbers` are given, as of `int8_linear.rounded`.

        In place of a scale for each row these may have one for each part of a row, `[out, parts]`. A part is a power of
        two of groups (`int4_linear.GROUP`).
        """
        super().__init__(weight, bias)
        self._values, self._scale = (tensor.contiguous() for tensor in numbers or rounded(weight))
        if self._scale.dim() > 1:
            self.shift = (self.in_features // GROUP // self._scale.shape[1]).bit_length() - 1

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._values, "scales" if self._scale.dim() == 1 else "factors": self._scale}


def int8_layer(
    weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None
) -> Int8Linear | NativeInt8Linear:
    """The faster layer of the two that this machine has for the weight."""
    return (NativeInt8Linear if suits_rounded(weight) else Int8Linear)(weight, bias, numbers)
