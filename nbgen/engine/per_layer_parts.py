"""What every layer is given of a token besides the states of the one before: per-layer inputs (Gemma 3n and 4).

They are made of the token's own embedding for each layer, and of a projection of the one that all layers begin with.
Knows nothing of what the layers make of them.
"""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, Product, part
from nbgen.engine.known_code import like
from nbgen.engine.native_half_linear import HalfEmbedding, scale_of
from nbgen.engine.native_linear import ALL

#: Whose ids beyond those that have an embedding for its layers have that of the first.
FIRST_BEYOND = ("gemma3n.Gemma3nTextModel",)


class PerLayerParts(NamedTuple):
    """`embeddings` `[vocab, layers * width]` times `embedding`, and what a projection makes times `projected`.

    Of the latter the `width` numbers of each layer are normed; the sum of both counts `both` times.
    """

    embeddings: torch.Tensor
    embedding: float
    projected: float
    both: float
    norm: NormParts
    width: int

    @classmethod
    def of(cls, decoder: Any) -> "PerLayerParts | None":
        """None where layers are given none. Raises ValueError for embeddings that do anything else."""
        if not (width := getattr(decoder, "hidden_size_per_layer_input", 0)):
            return None
        table, norm = decoder.embed_tokens_per_layer, NormParts.of(decoder.per_layer_projection_norm)
        scale = scale_of(table, decoder.dtype)
        if norm is None or scale is None or (table.weight.dtype != decoder.dtype and type(table) is not HalfEmbedding):
            raise ValueError("the embeddings of its layers are not known, or of another type than these")
        if len(table.weight) < decoder.config.vocab_size and not like(decoder, FIRST_BEYOND):
            raise ValueError("some ids have no embedding for its layers")
        projected = part(decoder, "per_layer_model_projection_scale", "per_layer_projection_scale")
        both = decoder.per_layer_input_scale
        return cls(table.weight, scale, float(projected), float(both), norm, width)


def projection(decoder: Any) -> Product:
    """Of all layers' inputs, with what adapters add to it now."""
    return Product(decoder.per_layer_model_projection, ALL)
