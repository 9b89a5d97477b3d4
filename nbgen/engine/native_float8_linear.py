"""Linear layers over weights of 8-bit floating-point numbers (E4M3), read as they lie in their file. CPU only."""

import torch

from nbgen.engine.int4_linear import GROUP
from nbgen.engine.native_linear import ALL, LinearFields, RoundedProduct

#: The C++ decodes each number to its 256th part; factors make up for it.
OF_NUMBERS = 256


class NativeFloat8Linear(RoundedProduct):
    """A layer that computes in `dtype`, with a shape that `suits_rounded`."""

    def __init__(
        self, words: torch.Tensor, factors: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        """`words` are `[out, in]`, and `factors` `[out, parts]` in float32 the scales of each output's parts.

        A part is a power of two of groups (`int4_linear.GROUP`).
        """
        weight = torch.empty(words.shape, dtype=dtype, device="meta")
        super().__init__(weight, None if bias is None else bias.detach().to(dtype).contiguous())
        self._words, self._factors = words, factors * OF_NUMBERS
        self.shift = (words.shape[1] // GROUP // factors.shape[1]).bit_length() - 1

    def fields(self, rows: slice = ALL, matrices: tuple[torch.Tensor, torch.Tensor] | None = None) -> LinearFields:
        found = super().fields(rows, matrices)
        found.floats = True
        return found

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {"integers": self._words, "factors": self._factors}
