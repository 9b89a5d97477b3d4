"""A linear layer's weight in words of 32 bits, as GPTQ, AWQ and compressed-tensors pack it. CPU only.

A weight is its packed value minus its group's zero, times its group's scale. Knows nothing of models.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from nbgen.engine.packed_layers import SHAPE, WORD, Packing
from nbgen.engine.rounded_weight import RoundedWeight

#: The places in a word of eight consecutive values, as AWQ orders them.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
#: A word with 1 in each place, by the bits of a place.
ONES = {4: 0x11111111, 8: 0x01010101}


class PackedWeight(NamedTuple):
    """`words` and `zeros` with `bits` for each value, and `scales`, in the layouts of `form` (`packed_layers`).

    A word packs values that are neighbours along `in` in GPTQ (`[in, out]`) and compressed-tensors (`[out, in]`), along
    `out` in AWQ (`[in, out]`). Zeros are packed along `out`; without zeros each is the middle value. `group_of` `[in]`
    says which group an input is in.
    """

    form: str
    bits: int
    less: int
    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group_of: torch.Tensor | None
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The shape `[out, in]` of the unpacked weight."""
        first, second = self.words.shape
        each = WORD // self.bits
        return {"gptq": (second, first * each), "awq": (second * each, first)}.get(self.form, (first, second * each))

    def rounded(self) -> RoundedWeight:
        middle = 2 ** (self.bits - 1)
        values = (self._values() - middle).view(torch.int8)  # bytes wrap around below 0
        scales = self.scales.float()
        scales = scales if self.form == "compressed-tensors" else scales.T
        zeros = self._zeros(len(values))
        weight_of_middle = torch.zeros_like(scales) if zeros is None else scales * (middle - zeros.float())
        return RoundedWeight(values, scales, weight_of_middle, self._odd_groups(scales.shape[1]))

    def layer(self, bias: torch.Tensor | None, dtype: torch.dtype) -> nn.Module | None:
        """A layer of exactly these numbers that computes in `dtype`; None if we have no layer for them."""
        return self.rounded().layer(bias, dtype)

    def whole(self) -> torch.Tensor:
        """The unpacked weight."""
        return self.rounded().whole().to(self.dtype)

    def _values(self) -> torch.Tensor:
        """The packed values `[out, in]` as uint8."""
        if self.form == "awq":
            return _rows_of(self.words.T, self.bits, AWQ_PLACES)
        return _columns_of(self.words.T if self.form == "gptq" else self.words, self.bits)

    def _zeros(self, outputs: int) -> torch.Tensor | None:
        """The zeros `[out, groups]` as uint8."""
        if self.zeros is None:
            return None
        if self.form == "compressed-tensors":
            return _rows_of(self.zeros, self.bits)[:outputs]
        places = AWQ_PLACES if self.form == "awq" else None
        return _rows_of((self.zeros + self.less * ONES[self.bits]).T, self.bits, places)

    def _odd_groups(self, groups: int) -> torch.Tensor | None:
        """Which group each input is in; None if groups are equal runs of consecutive inputs."""
        if self.group_of is None or bool((self.group_of < 0).any()):  # -1 means no group in compressed-tensors
            return None
        group_of, inputs = self.group_of.long(), len(self.group_of)
        even = inputs % groups == 0 and torch.equal(group_of, torch.arange(inputs) // (inputs // groups))
        return None if even else group_of


def _columns_of(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack words `[n, m]` to uint8 `[n, m * 32 / bits]`, each word from its lowest bits on."""
    parts = words.flatten().view(torch.uint8).view(len(words), -1)
    return parts if bits == 8 else torch.stack((parts & 15, parts >> 4), -1).flatten(1)


def _rows_of(words: torch.Tensor, bits: int, places: list[int] | None = None) -> torch.Tensor:
    """Unpack words `[n, m]` to uint8 `[n * 32 / bits, m]`, in the order of `places`, or from the lowest bits on."""
    each = WORD // bits
    parts = words.flatten().view(torch.uint8).view(*words.shape, WORD // 8)
    values = torch.empty(len(words), each, words.shape[1], dtype=torch.uint8)
    for row, place in enumerate(places or range(each)):
        byte, above = divmod(place * bits, 8)
        values[:, row] = (parts[..., byte] >> above) & (2**bits - 1)
    return values.flatten(0, 1)


def taken(packing: Packing, bits: int, take: Callable[[str], torch.Tensor | None], dtype: torch.dtype) -> PackedWeight:
    """The weight of a layer that computes in `dtype`, made of the tensors that `take` finds by their short names."""
    words, scales, zeros, group_of = map(take, packing.names)
    take(SHAPE)
    assert words is not None
    assert scales is not None
    if group_of is None and packing.form == "gptq":
        group_of = _of_parts(len(words) * WORD // bits, len(scales), packing.group)
    return PackedWeight(packing.form, bits, packing.less, words, scales, zeros, group_of, dtype)


def _of_parts(inputs: int, groups: int, size: int) -> torch.Tensor | None:
    """Which group each input is in, where all groups but a smaller last one have `size` inputs (AutoRound)."""
    of_parts = size > 0 and inputs % size and -(-inputs // size) == groups
    return torch.arange(inputs) // size if of_parts else None
