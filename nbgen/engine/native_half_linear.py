"""Linear layers and embeddings that stay in the 16 bits of their file while a model computes in float32. CPU only.

float32 holds every bfloat16 and float16 number exactly: results are those of a weight converted to float32, to the last
bit, from half the bytes and without a copy. This is for processors that cannot multiply numbers of the file's type.
"""

from typing import Any

import torch
from torch import nn

from nbgen.engine.known_code import like
from nbgen.engine.native_linear import NativeProduct, kept_as

HALVES = (torch.bfloat16, torch.float16)
#: Embedding classes that multiply what they look up by a factor.
SCALED = [
    "gemma.GemmaTextScaledWordEmbedding",
    "gemma2.Gemma2TextScaledWordEmbedding",
    "gemma3.Gemma3TextScaledWordEmbedding",
    "gemma3n.Gemma3nTextScaledWordEmbedding",
    "gemma4.Gemma4TextScaledWordEmbedding",
    "biogpt.BioGptScaledWordEmbedding",
]


class NativeHalfLinear(NativeProduct):
    """Replaces an `nn.Linear`, over the same weight. It takes and gives float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` is `[out, in]`, of `HALVES`, and of a shape whose product in float32 this machine `suits`."""
        super().__init__(as_float32(weight), None if bias is None else bias.detach().float())
        self.halves = weight.detach()
        #: Whether code has asked for `weight`, which does not exist in the type that the layer computes in.
        self.was_looked_at = False

    @property
    def weight(self) -> torch.Tensor:
        self.was_looked_at = True
        raise AttributeError("the weight is in 16 bits, and its layer computes in float32")

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {kept_as(self.halves, torch.float32): self.halves}


class HalfEmbedding(nn.Module):
    """Replaces an `nn.Embedding`, over the same weight, which is no parameter here. It gives float32.

    Its embeddings are multiplied by `scale`.
    """

    def __init__(self, embedding: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = embedding.weight.shape
        self.padding_idx = embedding.padding_idx
        self.weight, self.scale = embedding.weight.detach(), scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = nn.functional.embedding(ids, self.weight).float()
        return found if self.scale == 1.0 else found * self.scale


def scale_of(embedding: Any, dtype: torch.dtype) -> float | None:
    """The factor by which it multiplies embeddings of `dtype` (Gemma's do); None where it does more than that."""
    if type(embedding) in (nn.Embedding, HalfEmbedding):
        return float(getattr(embedding, "scale", 1.0))
    if not like(embedding, SCALED):
        return None
    scale = embedding.embed_scale
    return float(scale.to(dtype) if isinstance(scale, torch.Tensor) else scale)


def as_float32(weight: torch.Tensor) -> torch.Tensor:
    """A float32 tensor of the same shape without numbers (on the meta device)."""
    return torch.empty(weight.shape, dtype=torch.float32, device="meta")
