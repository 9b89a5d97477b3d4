"""Linear layers over weights of 4 bits that stand for any 16 numbers, times what a group has in common. CPU only.

So gpt-oss's experts are kept (MXFP4, OCP Microscaling Formats 1.0), and what bitsandbytes saves (NF4, QLoRA, Dettmers
et al. 2023). Every product sees the very numbers that the file holds.
"""

import torch

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_int4_linear import packed
from nbgen.engine.native_linear import ALL, LinearFields, RoundedProduct, suits_rounded

#: Inputs whose weights have a factor in common.
BLOCK = 2 * GROUP


class NativeScaledLinear(RoundedProduct):
    """A layer that computes in `dtype`, of a shape that this machine `suits_rounded`."""

    def __init__(
        self,
        words: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        numbers: torch.Tensor | None = None,
    ) -> None:
        """`words` `[out, in / 4]` are `packed`, `scales` bytes of exponents `[out, in / GROUP]` (MXFP4).

        With 16 `numbers` in float32 weights are these, and `scales` the factors `[out, in / BLOCK]` in float32. All are
        read where they lie.
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
    """The words of `blocks` `[out, groups, 16]`, which have two numbers a byte, the first in its low half."""
    return packed(torch.stack([blocks & 15, blocks >> 4], -1).flatten(1))


def fits(shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether there is one for a weight `[out, in]` of blocks whose factors are known."""
    return shape[1] % BLOCK == 0 and suits_rounded(torch.empty(shape, dtype=dtype, device="meta"))
