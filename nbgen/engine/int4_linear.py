"""Linear layers with 4-bit weights, for the CPU: a quarter of the bytes of bfloat16 to read.

An output's weights for a group of `GROUP` inputs are rounded to 16 equal steps from the least to the largest, as
torchao's `Int4WeightOnlyConfig` does; scale and middle have the layer's own type. Few rows go to torch's kernel, whose
time grows with the rows; for many rows, and for float32, in which it is slow, weights are unpacked a piece at a time.
"""

import torch
from torch import nn

from nbgen.engine.linear import Numbers

GROUP = 32
#: Rows of bfloat16 up to which torch's kernel is faster than unpacking.
FEW = 80
#: Weights unpacked at a time.
AT_ONCE = 2**22
#: Weights rounded at a time: few, so that intermediate results stay near the processor, in memory that is reused.
ROUNDED_AT_ONCE = 2**20
#: How many outputs torch's kernel keeps side by side: with AVX-512, with AVX2.
BLOCKS = (64, 32)


class Int4Linear(nn.Module):
    """Replaces a linear layer; `rounded` made its numbers."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, numbers: Numbers | None = None) -> None:
        """`weight` is `[out, in]`, of a shape that `fits`; it is not read if `numbers` are given, as of `rounded`."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        values, self._scales = numbers or rounded(weight)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.int(), 1)
        self._block = next((block for block in BLOCKS if self._packs_by(block, values)), None)
        self._few = FEW if weight.dtype == torch.bfloat16 else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the weight and its scales."""
        return self._packed.nbytes + self._scales.nbytes

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        if self._block is None or len(rows) <= self._few:
            output = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._packed, GROUP, self._scales)
        else:
            output = self._unpacking(rows, self._block)
        if self.bias is not None:
            output += self.bias
        return output.view(*input.shape[:-1], self.out_features)

    def _unpacking(self, rows: torch.Tensor, block: int) -> torch.Tensor:
        output = rows.new_empty(len(rows), self.out_features)
        blocks = max(1, AT_ONCE // self.in_features // block)
        for first in range(0, self.out_features // block, blocks):
            part = slice(first * block, min((first + blocks) * block, self.out_features))
            values = self._unpacked(block, slice(first, first + blocks), rows.dtype)
            scale, middle = (self._scales[:, None, part, side].contiguous() for side in (0, 1))
            grouped = values.sub_(8).view(-1, GROUP, values.shape[1])
            output[:, part] = rows @ torch.addcmul(middle, grouped, scale).view_as(values)
        return output

    def _unpacked(self, block: int, blocks: slice, dtype: torch.dtype) -> torch.Tensor:
        """These blocks of outputs as `[in, out]`, 0 to 15: a byte holds one output of a block's first half and one of
        its second."""
        packed = self._packed.view(-1, self.in_features, block // 2)[blocks].transpose(0, 1)
        values = torch.empty(self.in_features, packed.shape[1], 2, block // 2, dtype=dtype)
        values[:, :, 0] = packed & 15
        values[:, :, 1] = packed >> 4
        return values.flatten(1)

    def _packs_by(self, block: int, values: torch.Tensor) -> bool:
        """Whether the kernel's layout is the one that `_unpacked` reads; machines differ in it."""
        if self.out_features % block:
            return False
        return torch.equal(self._unpacked(block, slice(None), torch.uint8), values.T)


def fits(weight: torch.Tensor) -> bool:
    """Whether torch's kernel takes a weight `[out, in]` of this shape."""
    return weight.shape[0] % 16 == 0 and weight.shape[1] % GROUP == 0


def rounded(weight: torch.Tensor) -> Numbers:
    """Values `[out, in]` of 0 to 15, and `[in / GROUP, out, 2]`: each group's scale, and the weight that is 8."""
    values = torch.empty(weight.shape, dtype=torch.uint8)
    scales = torch.empty(weight.shape[1] // GROUP, len(weight), 2, dtype=weight.dtype)
    at_once = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    for start in range(0, len(weight), at_once):
        part = slice(start, start + at_once)
        groups = weight[part].to(torch.float32, copy=True).unflatten(1, (-1, GROUP))
        least, largest = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)  # aminmax takes four times as long
        scale = ((largest - least) / 15).clamp_(min=1e-6).to(weight.dtype)
        middle = (least + scale.float() * 8).to(weight.dtype)
        values[part] = groups.sub_(middle.float()).div_(scale.float()).add_(8).round_().clamp_(0, 15).flatten(1)
        scales[:, part] = torch.cat([scale, middle], 2).transpose(0, 1)
    return values, scales
