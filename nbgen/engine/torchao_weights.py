"""Checkpoints that torchao quantized, on a CPU: 8 and 4 bits become layers of our own, other weights are unpacked.

torchao's tensors are for GPUs: on a CPU they unpack a weight at every call, or cannot be multiplied at all. If a
checkpoint also asks to round inputs, that is ignored: without GPU kernels it loses precision and saves no time.
"""

from typing import Any

import torch
from torch import nn

from nbgen.engine.rounded_weight import RoundedWeight
from nbgen.errors import ModelError


def replace(model: nn.Module, dtype: torch.dtype, name: str) -> None:
    """Replace all of torchao's tensors in `model`, which computes in `dtype`. Raises ModelError for GPU-only ones."""
    for parent in list(model.modules()):
        for place, child in list(parent.named_children()):
            if (layer := _layer(child, dtype)) is not None:
                setattr(parent, place, layer)
    written: dict[torch.Tensor, nn.Parameter] = {}
    for module in model.modules():
        for place, weight in list(module.named_parameters(recurse=False)):
            if is_torchao(weight):
                if weight not in written:
                    written[weight] = nn.Parameter(_written_out(weight, dtype, name), requires_grad=False)
                setattr(module, place, written[weight])


def is_torchao(weight: object) -> bool:
    return type(weight).__module__.startswith("torchao.")


def _layer(module: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """Our layer for a linear layer of torchao; None for other modules, and if none of our layers suits its weight."""
    if type(module) is not nn.Linear or not is_torchao(getattr(module, "weight", None)):
        return None
    rounded = _rounded(module.weight)
    return None if rounded is None else rounded.layer(module.bias, dtype)


def _rounded(weight: Any) -> RoundedWeight | None:
    """The weight's values and scales; None for a weight of another kind, or one whose inputs are scaled first."""
    if weight.dim() != 2 or getattr(weight, "act_pre_scale", None) is not None:
        return None
    if type(weight).__name__ == "Int4Tensor":
        return _int4(weight)
    if type(weight).__name__ not in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
        return None
    rows, columns = weight.block_size
    shape = len(weight) // rows, weight.shape[1] // columns
    scale = weight.scale.float().reshape(shape)
    zero = torch.zeros(()) if weight.zero_point is None else weight.zero_point.float().reshape(shape)
    scale, middle = (each.repeat_interleave(rows, 0) for each in (scale, -zero * scale))
    return RoundedWeight(weight.qdata, scale, middle)


def _int4(weight: Any) -> RoundedWeight:
    """Each byte holds two values, the first in its low half; scales and zeros are `[groups, outputs]`."""
    low, high = (weight.qdata << 4) >> 4, weight.qdata >> 4
    scale, middle = (each.float().transpose(-1, -2) for each in (weight.scale, weight.zero_point))
    return RoundedWeight(torch.stack((low, high), -1).flatten(-2), scale, middle)


def _written_out(weight: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    kind = type(weight).__name__
    if kind == "Int4Tensor":
        numbers = _int4(weight).whole()
    elif "dequantize" in vars(type(weight)):
        numbers = weight.dequantize()
    else:
        raise ModelError(
            f"{name} is quantized as torchao's {kind}, which GPUs alone can read: on a CPU take one of its other "
            "formats, or the model as it was before, with quantization='int4'"
        )
    before = getattr(weight, "act_pre_scale", None)
    return (numbers if before is None else numbers * before).to(dtype)
