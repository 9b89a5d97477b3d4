"""16-bit models that compute in float32, while the weights of their products stay in 16 bits. CPU only."""

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbgen.engine import native_experts
from nbgen.engine.linear import is_plain, restore, run, swap
from nbgen.engine.native_half_linear import HALVES, HalfEmbedding, NativeHalfLinear, as_float32, scale_of
from nbgen.engine.native_linear import suits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


def widen(model: "PreTrainedModel") -> None:
    """Have a 16-bit model compute in float32; the weights of its decoder and head stay as they are.

    Weights that the model's own code reads are converted to float32, like everything else.
    """
    model.eval()
    decoder, head, table = model.get_decoder(), model.get_output_embeddings(), model.get_input_embeddings()
    tables = (table, getattr(decoder, "embed_tokens_per_layer", None))
    inside = {id(module) for module in (*decoder.modules(), head)}

    def kept(module: nn.Module) -> nn.Module | None:
        if id(module) not in inside:
            return None
        if native_experts.known(module, in_float32=True) and module.down_proj.dtype in HALVES:
            return native_experts.of(module, in_float32=True)
        if not _is_readable(getattr(module, "weight", None)):
            return None
        if module in tables and (scale := scale_of(module, torch.float32)) is not None:
            return HalfEmbedding(module, scale)
        return NativeHalfLinear(module.weight, module.bias) if is_plain(module) else None

    swaps = swap(model, kept)
    if next(model.parameters(), None) is None:  # transformers tells a model's type by its parameters
        restore([each for each in swaps if each[2] is table])
    nn.Module.float(model)  # transformers' own refuses quantized models
    while swaps and not _runs(model):
        looked_at = {name for parent, name, _ in swaps if getattr(getattr(parent, name), "was_looked_at", False)}
        back = [each for each in swaps if each[1] in looked_at] or swaps
        restore(back)
        swaps = [each for each in swaps if each not in back]
        nn.Module.float(model)


def _is_readable(weight: Any) -> bool:
    if type(weight) not in (nn.Parameter, torch.Tensor) or weight.dtype not in HALVES or weight.dim() != 2:
        return False
    return weight.is_contiguous() and suits(as_float32(weight), any_outputs=True)


def _runs(model: "PreTrainedModel") -> bool:
    """Whether the model still runs: its code may read weights that are not there in float32."""
    try:
        run(model)
    except Exception as error:  # a model may do anything with its layers
        log.info("some weights of %s are written out as float32, or all: %s", type(model).__name__, error)
        return False
    return True
