"""Weights of many experts that are not one tensor, and linear layers over them. CPU only.

Does not know how they are read.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from nbgen.engine import memory, native, native_experts
from nbgen.engine.coded_weight import CodedWeight
from nbgen.engine.native_half_linear import NativeHalfLinear
from nbgen.engine.native_linear import ALL, NativeLinear, NativeProduct
from nbgen.engine.native_scaled_linear import NativeScaledLinear, packed_blocks
from nbgen.engine.packed_weight import PackedWeight
from nbgen.engine.scaled_weight import ScaledWeight

#: Packed weights for which we have layers.
Packed = CodedWeight | ScaledWeight | PackedWeight
#: For each expert: gate and up, or one of them, or down.
Products = list[list[NativeProduct]]


class Weights(Protocol):
    """One weight of all experts of a layer, in place of a tensor `[experts, …]`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of that tensor."""

    @property
    def dtype(self) -> torch.dtype:
        """Of that tensor."""

    def whole(self, count: int | None = None) -> torch.Tensor:
        """That tensor, of all experts or of the first `count`."""

    def products(self, module: Any, dtype: torch.dtype, *, two: bool) -> Products | None:
        """Our layers for the experts of `module`, for rows of `dtype`; None if we have none for them.

        `two`: the weight is gate and up.
        """


class Apart(NamedTuple):
    """For each expert, the parts that stacked by rows make its weight `[out, in]`."""

    parts: list[list[torch.Tensor | Packed]]

    @property
    def shape(self) -> tuple[int, ...]:
        first, *_ = self.parts
        return len(self.parts), sum(piece.shape[0] for piece in first), *first[0].shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0][0].dtype

    def whole(self, count: int | None = None) -> torch.Tensor:
        return torch.stack([torch.cat(list(map(_whole, pieces))) for pieces in self.parts[:count]])

    def products(self, module: Any, dtype: torch.dtype, *, two: bool) -> Products | None:
        if not native_experts.lies_well(module):
            return None
        if any(isinstance(piece, Packed) for pieces in self.parts for piece in pieces):
            return self._packed_products(dtype, two)
        parts: Any = self.parts
        if not all(piece.is_contiguous() for pieces in parts for piece in pieces):
            return None
        layer: Any = NativeLinear if dtype == self.dtype else NativeHalfLinear
        weights = [pieces[0].chunk(2) if two and len(pieces) == 1 else pieces for pieces in parts]
        return [[layer(weight, None) for weight in pieces] for pieces in weights]

    def _packed_products(self, dtype: torch.dtype, two: bool) -> Products | None:
        """None if we have no layer for one of them, or if gate and up are packed together."""
        if any(len(pieces) != 1 + two for pieces in self.parts):
            return None
        made: list[list[Any]] = [[_layer(piece, dtype) for piece in pieces] for pieces in self.parts]
        memory.drop_pages(*(piece.words for pieces in self.parts for piece in pieces if isinstance(piece, Packed)))
        return made if all(isinstance(each, NativeProduct) for products in made for each in products) else None


def _whole(piece: torch.Tensor | Packed) -> torch.Tensor:
    return piece.whole() if isinstance(piece, Packed) else piece


def _layer(piece: torch.Tensor | Packed, dtype: torch.dtype) -> nn.Module | None:
    return piece.layer(None, dtype) if isinstance(piece, Packed) else None


class Mxfp4(NamedTuple):
    """`blocks` `[experts, out, groups, 16]` and `scales` `[experts, out, groups]` of weights `[experts, in, out]`.

    In a joint weight of gate and up, their rows alternate in `out`.
    """

    blocks: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    def fits(self, weight: torch.Tensor) -> bool:
        """Whether these make a weight of this shape."""
        return self.blocks.dim() == 4 and self.blocks.shape[:-1] == self.scales.shape and self.shape == weight.shape

    @property
    def shape(self) -> tuple[int, ...]:
        experts, outputs, groups, half = self.blocks.shape
        return experts, groups * half * 2, outputs

    def whole(self, count: int | None = None) -> torch.Tensor:
        return convert_moe_packed_tensors(self.blocks[:count], self.scales[:count], dtype=self.dtype)

    def products(self, module: Any, dtype: torch.dtype, *, two: bool) -> Products | None:
        if not native.rounds(dtype):
            return None
        bias = module.gate_up_proj_bias if two else module.down_proj_bias
        parts = (native_experts.EVEN, native_experts.ODD) if two else (ALL,)
        made: Products = [[] for _ in self.blocks]
        for part in parts:
            words, scales = self._words(part), self.scales[:, part].contiguous()
            for index, products in enumerate(made):
                products.append(NativeScaledLinear(words[index], scales[index], bias[index, part], dtype))
        memory.drop_pages(self.blocks)
        return made

    def _words(self, part: slice) -> torch.Tensor:
        """The words of all experts in one tensor: temporary copies for each expert would fragment the heap."""
        blocks = self.blocks[:, part]
        words = torch.empty(*blocks.shape[:2], blocks.shape[2] * 8, dtype=torch.int16)
        for index, own in enumerate(blocks):
            words[index] = packed_blocks(own)
        return words
