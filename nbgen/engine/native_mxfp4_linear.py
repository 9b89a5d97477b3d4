"""Linear layers over weights in MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss's experts are kept. CPU only.

Every product sees the very numbers that the file holds.
"""

import torch

from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_linear import NativeProduct


class NativeMxfp4Linear(NativeProduct):
    """A layer that computes in `dtype`, of a shape whose product this machine `suits`."""

    def __init__(
        self, blocks: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        """`blocks` `[out, groups, 16]` have two numbers a byte, the first in its low half; `scales` `[out, groups]`."""
        super().__init__(shape_of(blocks, dtype), None if bias is None else bias.detach().to(dtype).contiguous())
        self._packed = packed(torch.stack([blocks & 15, blocks >> 4], -1).flatten(1))
        self._exponents = scales.contiguous()

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._packed, "exponents": self._exponents}


def shape_of(blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight `[out, in]` of that type, without numbers."""
    outputs, groups, half = blocks.shape
    return torch.empty(outputs, groups * half * 2, dtype=dtype, device="meta")
