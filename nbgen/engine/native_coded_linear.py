"""Linear layers over weights of 4 bits that stand for any 16 numbers, as bitsandbytes keeps them (NF4). CPU only.

Every product sees the very numbers that the file holds (QLoRA, Dettmers et al. 2023).
"""

import torch

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_linear import ALL, LinearFields, NativeProduct, suits

#: Inputs of a block, whose numbers have the largest of them in common.
BLOCK = 2 * GROUP


class NativeCodedLinear(NativeProduct):
    """A layer that computes in `dtype`, of a shape that `fits`."""

    def __init__(
        self,
        values: torch.Tensor,
        codes: torch.Tensor,
        largest: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        """`values` `[out, in]` of uint8 say which of 16 `codes`, `largest` `[out, in / BLOCK]` what these are times."""
        weight = torch.empty(values.shape, dtype=dtype, device="meta")
        super().__init__(weight, None if bias is None else bias.detach().to(dtype).contiguous())
        self._words, self._codes, self._largest = packed(values), codes.float(), largest.float().contiguous()

    def fields(self, rows: slice = ALL, matrices: tuple[torch.Tensor, torch.Tensor] | None = None) -> LinearFields:
        found = super().fields(rows, matrices)
        found.codes = self._codes.data_ptr()
        return found

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._words, "largest": self._largest}


def fits(shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether this machine has a product for a weight `[out, in]` of this shape and type."""
    return shape[1] % BLOCK == 0 and suits(torch.empty(shape, dtype=dtype, device="meta"))
