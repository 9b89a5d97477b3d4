"""Parts of layers with several hidden-state streams, of which a layer computes only one (Gemma 3n).

The layer mixes the streams before and after it computes (AltUp, Baykal et al. 2023), and has a low-rank branch beside
attention (LAuReL, Menghani et al. 2024). Knows nothing of what replaces these parts.
"""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, Product
from nbgen.engine.known_code import like
from nbgen.engine.native_linear import ALL

#: The most streams.
MOST = 8
#: Products of a few numbers, which none of our linear layers computes.
FEW = ("routes", "predicts", "corrects")
#: These and the products of the low-rank branch.
MIXING = (*FEW, "left", "right")


class MixingParts(NamedTuple):
    """The router, which decides how to mix, reads the first stream normed by `routed`, times `scale`.

    The low-rank branch ends in the norm `beside`. What gates the layer's per-layer inputs is the first stream, times
    `scales` `[hidden]` if there are any.
    """

    routed: NormParts | None
    beside: NormParts | None
    scale: float
    scales: torch.Tensor | None

    @classmethod
    def of(cls, layer: Any) -> "MixingParts | None":
        """None if there is only one stream. Raises ValueError if streams are mixed in another way."""
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
    """The products of a layer with several streams."""
    mixes, beside = layer.altup, layer.laurel
    linears = mixes.modality_router, mixes.prediction_coefs, mixes.correction_coefs
    made = (*linears, beside.linear_left, beside.linear_right)
    return {name: Product(linear, ALL) for name, linear in zip(MIXING, made, strict=True)}


def around(decoder: Any) -> tuple[list[Product], list[Product]]:
    """The products that make the other streams from the first, and those that turn them back; none for one stream."""
    lists = (getattr(decoder, name, ()) for name in ("altup_projections", "altup_unembed_projections"))
    begins, ends = ([Product(linear, ALL) for linear in linears] for linears in lists)
    return begins, ends
