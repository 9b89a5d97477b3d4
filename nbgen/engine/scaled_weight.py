"""A linear layer's weight in numbers of 8 or 4 bits, times scales. CPU only.

E4M3 (Micikevicius et al. 2022) and E2M1 (OCP Microscaling Formats 1.0). Knows nothing of models.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from nbgen.engine import scaled_layers
from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_float8_linear import NativeFloat8Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear, int8_layer
from nbgen.engine.native_linear import suits_rounded
from nbgen.engine.native_scaled_linear import NativeScaledLinear, packed_blocks

#: The values of E2M1, indexed by its four bits.
NUMBERS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)
#: The most inputs that may share a scale in our layers.
MOST = 1024
#: How many weights are unpacked at a time.
AT_ONCE = 2**22


class ScaledWeight(NamedTuple):
    """`words` are E4M3 or int8 `[out, in]`, or bytes `[out, in / 2]` of two E2M1 each, the first in the low half.

    `scales` `[down, across]` (float32) belong to blocks of `block` outputs and inputs; the last ones may be smaller.
    """

    words: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The shape `[out, in]` of the unpacked weight."""
        outputs, inputs = self.words.shape
        return outputs, inputs * (2 if self.words.dtype == torch.uint8 else 1)

    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """A layer of exactly these numbers that computes in `dtype`; None if we have no layer for them."""
        scales, shape = self._of_rows(slice(0, self.shape[0])), torch.empty(self.shape, dtype=dtype, device="meta")
        if self.words.dtype == torch.int8 and scales.shape[1] == 1:
            return int8_layer(shape, bias, (self.words, scales[:, 0].contiguous()))
        size = math.gcd(self.block[1] if scales.shape[1] > 1 else MOST, self.shape[1], MOST)
        if size < GROUP or not suits_rounded(shape):
            return None
        scales = scales[:, torch.arange(0, self.shape[1], size) // self.block[1]]
        if self.words.dtype == torch.int8:
            return NativeInt8Linear(shape, bias, (self.words, scales))
        if self.words.dtype == torch.float8_e4m3fn:
            return NativeFloat8Linear(self.words, scales, bias, dtype)
        exponents = (scales.view(torch.int32) >> 23).to(torch.uint8)
        if size > GROUP or not torch.equal((exponents.float() - 127).exp2(), scales):
            return None
        return NativeScaledLinear(packed_blocks(self.words.unflatten(1, (-1, GROUP // 2))), exponents, bias, dtype)

    def whole(self) -> torch.Tensor:
        """The unpacked weight."""
        outputs, inputs = self.shape
        whole, rows = torch.empty(self.shape, dtype=self.dtype), max(1, AT_ONCE // inputs)
        for first in range(0, outputs, rows):
            part = slice(first, min(first + rows, outputs))
            whole[part] = self._numbers(part) * self._of_rows(part).repeat_interleave(self.block[1], 1)[:, :inputs]
        return whole

    def _of_rows(self, rows: slice) -> torch.Tensor:
        """The scales of these rows."""
        return self.scales[torch.arange(rows.start, rows.stop) // self.block[0]]

    def _numbers(self, rows: slice) -> torch.Tensor:
        words = self.words[rows]
        if words.dtype != torch.uint8:
            return words.float()
        return torch.tensor(NUMBERS)[torch.stack((words & 15, words >> 4), -1).flatten(1).int()]


def taken(block: tuple[int, int], take: Callable[[str], torch.Tensor | None], dtype: torch.dtype) -> ScaledWeight:
    """The weight of a layer that computes in `dtype`, made of the tensors that `take` finds by their short names."""
    words = next(found for each in scaled_layers.NUMBERS if (found := take(each)) is not None)
    scales = next(found for each in scaled_layers.SCALES if (found := take(each)) is not None)
    times, by = take(scaled_layers.TIMES), take(scaled_layers.BY)
    for each in scaled_layers.OF_INPUTS:
        take(each)
    known = _as_float32(scales)
    known = known if times is None else known * times.float()
    known = known if by is None else known / by.float()
    known = known.view(1, 1) if known.numel() == 1 else known[:, None] if known.dim() == 1 else known
    sizes = zip(ScaledWeight(words, known, block, dtype).shape, known.shape, block, strict=True)
    rows, columns = (_size(whole, parts, told) for whole, parts, told in sizes)
    return ScaledWeight(words, known, (rows, columns), dtype)


def _as_float32(scales: torch.Tensor) -> torch.Tensor:
    """Scales as float32. Bytes are exponents of two, with a bias of 127."""
    return (scales.float() - 127).exp2() if scales.dtype == torch.uint8 else scales.float()


def _size(whole: int, parts: int, told: int) -> int:
    """The size of a block: as described (`told`) if that fits the number of `parts`, or else an equal share."""
    if told and -(-whole // told) == parts:
        return told
    if whole % parts:
        raise ValueError(f"{whole} weights of a layer have {parts} scales, and nothing tells which")
    return whole // parts
