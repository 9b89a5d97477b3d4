"""Linear layers and embeddings that stay in the 16 bits of their file while a model computes in float32. CPU only.

Every number of bfloat16 and of float16 is one of float32 too: results are those of a weight written out as float32, to
the last bit, from half the bytes and without a copy. That is for processors that do not multiply what the file holds.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbgen.engine.known_code import like
from nbgen.engine.linear import is_plain, restore, run, swap
from nbgen.engine.native_linear import NativeProduct, kept_as, suits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HALVES = (torch.bfloat16, torch.float16)
#: Embeddings that multiply what they look up by a number of their own.
SCALED = ["gemma3.Gemma3TextScaledWordEmbedding"]

log = logging.getLogger(__name__)


class NativeHalfLinear(NativeProduct):
    """What stands where an `nn.Linear` stood, over the same weight. It takes and gives float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` is `[out, in]`, of `HALVES`, and of a shape whose product in float32 this machine `suits`."""
        super().__init__(_in_float32(weight), None if bias is None else bias.detach().float())
        self.halves = weight.detach()
        #: Whether somebody wanted a weight of the type that the layer computes in.
        self.was_looked_at = False

    @property
    def weight(self) -> torch.Tensor:
        self.was_looked_at = True
        raise AttributeError("the weight is in 16 bits, and its layer computes in float32")

    def _numbers(self) -> dict[str, torch.Tensor]:
        return {kept_as(self.halves, torch.float32): self.halves}


class HalfEmbedding(nn.Module):
    """What stands where an `nn.Embedding` stood, over the same weight, which is no parameter. It gives float32.

    What it looks up is multiplied by `scale`.
    """

    def __init__(self, embedding: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = embedding.weight.shape
        self.padding_idx = embedding.padding_idx
        self.weight, self.scale = embedding.weight.detach(), scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = nn.functional.embedding(ids, self.weight).float()
        return found if self.scale == 1.0 else found * self.scale


def widen(model: "PreTrainedModel") -> None:
    """Have a model of 16 bits compute in float32; its decoder's weights and the head's stay where they lie.

    All but those that the model's own code looks at, which are written out like everything else.
    """
    model.eval()
    decoder, head, table = model.get_decoder(), model.get_output_embeddings(), model.get_input_embeddings()
    inside = {id(module) for module in (*decoder.modules(), head)}

    def kept(module: nn.Module) -> nn.Module | None:
        if id(module) not in inside or not _is_readable(getattr(module, "weight", None)):
            return None
        if module is table and (scale := scale_of(module, torch.float32)) is not None:
            return HalfEmbedding(module, scale)
        return NativeHalfLinear(module.weight, module.bias) if is_plain(module) else None

    swaps = swap(model, kept)
    if next(model.parameters(), None) is None:  # by which a model's type is known
        restore([each for each in swaps if each[2] is table])
    nn.Module.float(model)  # transformers' own refuses quantized models
    while swaps and not _runs(model):
        looked_at = {name for parent, name, _ in swaps if getattr(getattr(parent, name), "was_looked_at", False)}
        back = [each for each in swaps if each[1] in looked_at] or swaps
        restore(back)
        swaps = [each for each in swaps if each not in back]
        nn.Module.float(model)


def scale_of(embedding: Any, dtype: torch.dtype) -> float | None:
    """By what it multiplies what it gives as `dtype` (Gemma's do); None where it does more than that."""
    if type(embedding) in (nn.Embedding, HalfEmbedding):
        return float(getattr(embedding, "scale", 1.0))
    return float(embedding.embed_scale.to(dtype)) if like(embedding, SCALED) else None


def _is_readable(weight: Any) -> bool:
    if type(weight) not in (nn.Parameter, torch.Tensor) or weight.dtype not in HALVES or weight.dim() != 2:
        return False
    return weight.is_contiguous() and suits(_in_float32(weight))


def _in_float32(weight: torch.Tensor) -> torch.Tensor:
    """One of the same shape, without numbers."""
    return torch.empty(weight.shape, dtype=torch.float32, device="meta")


def _runs(model: "PreTrainedModel") -> bool:
    """Code of a model may look at its weights, and not know these."""
    try:
        run(model)
    except Exception as error:  # a model may do anything with its layers
        log.info("some weights of %s are written out as float32, or all: %s", type(model).__name__, error)
        return False
    return True
