"""The type that keys and values are kept in. Knows no sizes."""

from typing import TYPE_CHECKING

import torch

from nbgen.engine.loader import DTYPES
from nbgen.engine.native_half_linear import HalfEmbedding, NativeHalfLinear
from nbgen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def chosen(name: str, model: "PreTrainedModel", *, paged: bool) -> torch.dtype | None:
    """What to round keys and values to, None if to nothing; `paged` says whether they are in our own cache.

    "auto" keeps them as the checkpoint has its weights: in bfloat16 where these stay so while the model computes in
    float32. Raises ModelError for an unknown name, and for a type that the model's attention does not read.
    """
    if name not in DTYPES:
        raise ModelError(f"kv_cache_dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    may_round = paged and model.device.type == "cpu" and model.dtype == torch.float32
    if name == "auto":
        return torch.bfloat16 if may_round and _stays_in_bfloat16(model) else None
    if name == (own := named(None, model)):
        return None
    if name == "bfloat16" and may_round:
        return torch.bfloat16
    where = f"computes in {own} on {model.device.type}" + ("" if paged else " with a cache of its own code's")
    raise ModelError(f"kv_cache_dtype is {name!r}, and this model {where}: leave kv_cache_dtype out, or say {own!r}")


def named(kept: torch.dtype | None, model: "PreTrainedModel") -> str:
    """The name of the type that this choice comes to."""
    return str(kept or model.dtype).removeprefix("torch.")


def _stays_in_bfloat16(model: "PreTrainedModel") -> bool:
    """Whether weights of a model that computes in float32 are bfloat16."""
    return any(
        (isinstance(module, NativeHalfLinear) and module.halves.dtype == torch.bfloat16)
        or (isinstance(module, HalfEmbedding) and module.weight.dtype == torch.bfloat16)
        for module in model.modules()
    )
