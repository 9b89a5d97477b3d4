"""Linear layers over 4-bit weights that stand for any 16 numbers, times a scale for each group. CPU only.

gpt-oss's experts are kept this way (MXFP4, OCP Microscaling Formats 1.0), and so is what bitsandbytes saves (NF4,
QLoRA, Dettmers et al. 2023). Every product uses the exact numbers that the file holds.
"""

import torch

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_linear import ALL, LinearFields, RoundedProduct, suits_rounded

#: Number of inputs whose weights share a factor.
BLOCK = 2 * GROUP


class NativeScaledLinear(RoundedProduct):
    """A layer that computes in `dtype`, with a shape that `suits_rounded`."""

    def __init__(
        self,
        words: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        numbers: torch.Tensor | None = None,
    ) -> None:
        """`words` `[out, in / 4]` are `packed`, `scales` bytes of exponents `[out, in / GROUP]` (MXFP4).

        With 16 float32 `numbers`, a weight is one of these, and `scales` are float32 factors `[out, in / BLOCK]`. All
        are read in place.
        """
        weight = torch.empty(len(words), words.shape[1] * 4, dtype=dtype, device="meta")
        super().__init__(weight, None if bias is None else bias.detach().to(dtype).contiguous())
        self._words, self._scales, self._of_four_bits = words, scales, numbers

    def fields(self, rows: slice = ALL, matrices: tuple[torch.Tensor, torch.Tensor] | None = None) -> LinearFields:
        found = super().fields(rows, matrices)
        if self._of_four_bits is not None:
            found.numbers = self._of_four_bits.data_ptr()
        return found

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._words, "exponents" if self._of_four_bits is None else "factors": self._scales}


def packed_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """The words of `blocks` `[out, groups, 16]`, which hold two numbers per byte, the first in its low half."""
    return packed(torch.stack([blocks & 15, blocks >> 4], -1).flatten(1))


def fits(shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether there is such a layer for a weight `[out, in]`."""
    return shape[1] % BLOCK == 0 and suits_rounded(torch.empty(shape, dtype=dtype, device="meta"))
