"""What every layer is given of a token besides the states of the one before: per-layer inputs (Gemma 4).

They are made of the token's own embedding for each layer, and of a projection of the one that all layers begin with.
Knows nothing of what the layers make of them.
"""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, Product
from nbgen.engine.native_half_linear import HalfEmbedding, scale_of
from nbgen.engine.native_linear import ALL


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
        if len(table.weight) < decoder.config.vocab_size:
            raise ValueError("some ids have no embedding for its layers")
        scales = scale, decoder.per_layer_model_projection_scale, decoder.per_layer_input_scale
        return cls(table.weight, *scales, norm, width)


def projection(decoder: Any) -> Product:
    """Of all layers' inputs, with what adapters add to it now."""
    return Product(decoder.per_layer_model_projection, ALL)
