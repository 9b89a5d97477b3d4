"""Linear layers with 8-bit weights, for the CPU: half the bytes of bfloat16 to read, and inputs lose no precision.

A weight is an integer, and each row has a scale, as torchao's `Int8WeightOnlyConfig` rounds them. The product is exact:
each input row becomes fixed-point numbers of two bytes (three for float32), each byte is a row of its own in oneDNN's
integer product, and the sums are put together again. So a row's result never depends on the rows beside it.
"""

from functools import cache

import torch
from torch import nn

from nbgen.engine.linear import Numbers

#: Weights rounded at a time, so that their float32 copies stay small.
AT_ONCE = 2**20
#: By bytes per input: the offset that makes the numbers positive, and the largest absolute value.
FIXED_POINT = {2: (128 * 257, 32639), 3: (64 * 2**16 + 128 * 257, 4161407)}
#: Adding it leaves a float32's low mantissa bits holding the integer.
MANTISSA = 2.0**23


class Int8Linear(nn.Module):
    """Replaces a linear layer; `rounded` made its numbers."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None) -> None:
        """`weight` is `[out, in]`; its numbers are not read if `numbers` are given, as of `rounded`."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        values, self._scale = numbers or rounded(weight)
        self._bytes = 3 if weight.dtype == torch.float32 else 2
        self._integers = products_are_exact()
        self._values = torch.ops.onednn.qlinear_prepack(values, None) if self._integers else values
        offset, _ = FIXED_POINT[self._bytes]
        places = sum(256**place for place in range(self._bytes))
        self._zeros = torch.zeros(self.out_features, dtype=torch.int32)
        self._correction = values.sum(1, dtype=torch.int64).double().mul(-offset / places).mul(self._scale).float()

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and its scales."""
        return self._values.nbytes + self._scale.nbytes

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        output = self._product(rows) if self._integers else self._dequantized(rows)
        return output.to(input.dtype).view(*input.shape[:-1], self.out_features)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.float()
        offset, largest = FIXED_POINT[self._bytes]
        step = rows.abs().amax(-1, keepdim=True).div_(largest).clamp_min_(1e-35)
        fixed = rows.div(step).add_(MANTISSA + offset).view(torch.uint8).view(*rows.shape, 4)
        parts = fixed[..., : self._bytes].permute(2, 0, 1).reshape(-1, self.in_features)
        sums = torch.ops.onednn.qlinear_pointwise(
            *(parts, 1.0, 0, self._values, self._scale, self._zeros, self._correction),
            *(1.0, 0, torch.float32, "none", [], ""),
        ).view(self._bytes, len(rows), self.out_features)
        total = torch.add(sums[0], sums[1], alpha=256)
        if self._bytes > 2:
            total.add_(sums[2], alpha=256**2)
        return total.mul_(step) if self.bias is None else torch.addcmul(self.bias, total, step)

    def _dequantized(self, rows: torch.Tensor) -> torch.Tensor:
        """The same where the CPU has no exact product of integers: slower, with as little memory."""
        product = nn.functional.linear(rows, self._values.to(rows.dtype)).float().mul_(self._scale)
        return product if self.bias is None else product.add_(self.bias)


def rounded(weight: torch.Tensor) -> Numbers:
    """int8 values `[out, in]` and the float32 scale of each row."""
    values = torch.empty(weight.shape, dtype=torch.int8)
    scale = torch.empty(len(weight))
    at_once = max(1, AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), at_once):
        part = slice(start, start + at_once)
        rows = weight[part].to(torch.float32, copy=True)
        scale[part] = rows.abs().amax(1).div_(127.5).clamp_min_(torch.finfo(torch.float32).eps)
        values[part] = rows.mul_(scale[part, None].reciprocal()).round_().clamp_(-128, 127)
    return values, scale


@cache
def products_are_exact() -> bool:
    """Whether this CPU multiplies bytes exactly; those before VNNI overflow in sums of 16 bits."""
    try:
        weight = torch.ops.onednn.qlinear_prepack(torch.full((16, 64), 127, dtype=torch.int8), None)
        inputs = torch.full((2, 64), 255, dtype=torch.uint8)
        zeros = torch.zeros(16, dtype=torch.int32)
        sums = torch.ops.onednn.qlinear_pointwise(
            *(inputs, 1.0, 0, weight, torch.ones(16), zeros, None), *(1.0, 0, torch.float32, "none", [], "")
        )
        return bool((sums == 255 * 127 * 64).all())
    except (AttributeError, RuntimeError):
        return False  # a torch without these operators
