"""Linear layers over weights in MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss's experts are kept. CPU only.

Every product sees the very numbers that the file holds.
"""

import torch

from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_linear import NativeProduct


class NativeMxfp4Linear(NativeProduct):
    """A layer that computes in `dtype`, of a shape whose product this machine `suits`."""

    def __init__(
        self, words: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        """`words` `[out, in / 4]` are `packed`, `scales` `[out, in / 32]` bytes; both are read where they lie."""
        weight = torch.empty(len(words), words.shape[1] * 4, dtype=dtype, device="meta")
        super().__init__(weight, None if bias is None else bias.detach().to(dtype).contiguous())
        self._words, self._scales = words, scales

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._words, "exponents": self._scales}


def packed_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """The words of `blocks` `[out, groups, 16]`, which have two numbers a byte, the first in its low half."""
    return packed(torch.stack([blocks & 15, blocks >> 4], -1).flatten(1))
