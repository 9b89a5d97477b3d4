"""Several streams of a token's states, of which a layer computes one, where a family's code is known (Gemma 3n).

The layer mixes them before that and after it (AltUp, Baykal et al. 2023), and attention has a smaller way beside it
(LAuReL, Menghani et al. 2024). Knows nothing of what replaces them.
"""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, Product
from nbgen.engine.known_code import like
from nbgen.engine.native_linear import ALL

#: Of a token, at most.
MOST = 8
#: Products of a few numbers, which are no products of ours.
FEW = ("routes", "predicts", "corrects")
#: … and of a layer's smaller way.
MIXING = (*FEW, "left", "right")


class MixingParts(NamedTuple):
    """What says how to mix sees the first stream through its norm (`routed`), and that `scale` times.

    The smaller way ends in a norm (`beside`). The layer's own inputs see the first stream times `scales` `[hidden]`, if
    there are any.
    """

    routed: NormParts | None
    beside: NormParts | None
    scale: float
    scales: torch.Tensor | None

    @classmethod
    def of(cls, layer: Any) -> "MixingParts | None":
        """None where there is one stream alone. Raises ValueError for other ways to mix them."""
        if (mixes := getattr(layer, "altup", None)) is None:
            return None
        config = mixes.config
        known = like(mixes, ["gemma3n.Gemma3nTextAltUp"]) and like(layer.laurel, ["gemma3n.Gemma3nTextLaurelBlock"])
        if not known or config.altup_active_idx != 0 or config.altup_num_inputs > MOST:
            raise ValueError("its streams of states are mixed in another way")
        routed, beside = NormParts.of(mixes.router_norm), NormParts.of(layer.laurel.post_laurel_norm)
        scales = mixes.correct_output_scale.detach() if config.altup_correct_scale else None
        return cls(routed, beside, float(mixes.router_input_scale), scales)


def products(layer: Any) -> dict[str, Product]:
    """Of a layer with streams."""
    mixes, beside = layer.altup, layer.laurel
    linears = mixes.modality_router, mixes.prediction_coefs, mixes.correction_coefs
    made = (*linears, beside.linear_left, beside.linear_right)
    return {name: Product(linear, ALL) for name, linear in zip(MIXING, made, strict=True)}


def around(decoder: Any) -> tuple[list[Product], list[Product]]:
    """What all streams but the first begin as, and what they end as; none where there is but one."""
    lists = (getattr(decoder, name, ()) for name in ("altup_projections", "altup_unembed_projections"))
    begins, ends = ([Product(linear, ALL) for linear in linears] for linears in lists)
    return begins, ends
