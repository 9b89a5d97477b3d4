"""Functions of a family's module in transformers, in place of which code of our own may run."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from nbgen.engine.linear import Swap

Function = Callable[..., Any]


def replace(model: nn.Module, instead: Mapping[str, Callable[[Function], Function]]) -> list[Swap]:
    """Put what is made `instead` of a function of this name in its place; where each stood, for `linear.restore`.

    Nothing is done for a model that is elsewhere than on a CPU.
    """
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return []
    homes: list[Any] = list({id(home): home for home in map(_home, model.modules())}.values())
    swaps = [(home, name, getattr(home, name)) for home in homes for name in instead if hasattr(home, name)]
    for home, name, present in swaps:
        stock = getattr(present, "stock", present)
        made: Any = instead[name](stock)
        made.stock = stock
        setattr(home, name, made)
    return swaps


def nobody_learns(*tensors: torch.Tensor) -> bool:
    """Whether they are on a CPU, of one type, and nothing is to be learned of them."""
    kinds = {(tensor.device.type, tensor.dtype) for tensor in tensors}
    return not torch.is_grad_enabled() and len(kinds) == 1 and tensors[0].device.type == "cpu"


def heads_together(tensor: torch.Tensor) -> torch.Tensor:
    """`[batch, tokens, heads, dim]` with a token's heads one after the other."""
    return tensor if tensor.stride()[2:] == (tensor.shape[3], 1) else tensor.contiguous()


def is_state(tensor: torch.Tensor | None) -> bool:
    """Whether a state is kept as ours are, or there is none yet."""
    return tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous())


def _home(module: nn.Module) -> Any:
    return sys.modules[type(module).__module__]
