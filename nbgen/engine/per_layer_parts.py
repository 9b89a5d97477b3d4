"""Per-layer inputs (Gemma 3n and 4): numbers of a token that each layer gets besides the output of the layer before.

They are the sum of an embedding of the token for that layer and a projection of the token's main embedding. Knows
nothing of how the layers use them.
"""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, Product, part
from nbgen.engine.known_code import like
from nbgen.engine.native_half_linear import HalfEmbedding, scale_of
from nbgen.engine.native_linear import ALL

#: Families in which an id beyond the per-layer embedding table uses the embedding of id 0.
FIRST_BEYOND = ("gemma3n.Gemma3nTextModel",)


class PerLayerParts(NamedTuple):
    """The `embeddings` `[vocab, layers * width]` are scaled by `embedding`, the projection's output by `projected`.

    Then the projection's `width` numbers of each layer are normed. The sum of the two is scaled by `both`.
    """

    embeddings: torch.Tensor
    embedding: float
    projected: float
    both: float
    norm: NormParts
    width: int

    @classmethod
    def of(cls, decoder: Any) -> "PerLayerParts | None":
        """None if layers have no such inputs. Raises ValueError for embeddings of an unknown kind."""
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
    """The projection that makes the inputs of all layers, with the active adapters."""
    return Product(decoder.per_layer_model_projection, ALL)
