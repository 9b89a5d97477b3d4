"""Linear layers whose weights are laid out once for oneDNN, instead of at every call. CPU only.

The operators are torch's own but not public: a layer is replaced only if they are there and give the very same numbers.
Knows no model beyond its modules.
"""

import dis
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import nn

from nbgen.engine import memory

#: Rows of the input that the layout is made for: a decode step's.
ROWS_HINT = 1
#: Rows with which each replaced layer is tried.
ROWS_TRIED = (1, 16)

#: A layer with fewer inputs or outputs than this has little to save.
FEW = 16

#: A quantized weight: its integers, and their scales.
Numbers = tuple[torch.Tensor, torch.Tensor]


def reordered(weight: torch.Tensor) -> torch.Tensor | None:
    """A bfloat16 weight `[out, in]` as only `product` reads it; None where oneDNN has no such layout of it."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return None
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
    except (AttributeError, RuntimeError):
        return None


def product(
    input: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the linear layer with this reordered weight, and add `added`."""
    if added is None:
        return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")
    return torch.ops.mkldnn._linear_pointwise.binary(input, added, packed, bias, "add")


class PrepackedLinear(nn.Module):
    """`nn.Linear` over a reordered weight, which only oneDNN can read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return product(input, self._packed, self.bias)


#: Arbitrary tokens, for a forward that shows which layers read the same tensor, and that all still run.
IDS = [1, 2, 3]


@torch.inference_mode()
def run(model: nn.Module, ids: list[int] = IDS) -> None:
    """Run a transformers model on these tokens. Raises whatever its code raises."""
    model(input_ids=torch.tensor([ids], device=next(model.parameters()).device), use_cache=False)


Swap = tuple[nn.Module, str, nn.Module]


@torch.inference_mode()
def prepack(model: nn.Module) -> list[Swap]:
    """Replace the model's bfloat16 linear layers, except those whose weight the model's own code reads."""
    shown = shown_weights(model)

    def packed(module: nn.Module) -> nn.Module | None:
        if id(module) in shown or not suits(module) or (layer := _packed(module)) is None:
            return None
        memory.drop_pages(module.weight)
        return layer

    return swap(model, packed)


def swap(model: nn.Module, instead: Callable[[nn.Module], nn.Module | None]) -> list[Swap]:
    """Replace the modules for which `instead` gives another; returns each one's parent, name and old module."""
    swaps: list[Swap] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (other := instead(child)) is not None:
                setattr(parent, name, other)
                swaps.append((parent, name, child))
    return swaps


def restore(swaps: list[Swap]) -> None:
    """Put the modules back that were replaced."""
    for parent, name, child in swaps:
        setattr(parent, name, child)


def suits(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether prepacking pays: float32 gains nothing, nor do few outputs or inputs."""
    if not is_plain(module) or min(module.weight.shape) < FEW:
        return False
    return module.weight.dtype == torch.bfloat16 and module.weight.device.type == "cpu"


def shown_weights(model: nn.Module) -> set[int]:
    """The modules, by their `id`, whose `weight` is read in the forward of the module that holds them.

    In the decoder only reading `weight.dtype` counts: other uses are arguments of functions that run only in training.
    A tower's code runs only when somebody sends media, long after the modules that replace others were tried on text.
    """
    decoder: Any = getattr(model, "get_decoder", None)
    tried = set() if decoder is None else {id(module) for module in decoder().modules()}
    asking = ((each, ("weight", "dtype") if id(each) in tried else ("weight",)) for each in model.modules())
    return {id(parent._modules.get(name)) for parent, then in asking for name in _asked(type(parent).forward, then)}


@cache
def _asked(forward: Callable[..., Any], then: tuple[str, ...]) -> frozenset[str]:
    """The names in a forward's code that are followed by the attributes `then`: `q_proj` for `q_proj.weight`."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    names = [] if code is None else [each.argval for each in dis.get_instructions(code)]
    spans = zip(names, *(names[i:] for i in range(1, 1 + len(then))), strict=False)
    return frozenset(name for name, *following in spans if tuple(following) == then and isinstance(name, str))


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is an `nn.Linear` over ordinary numbers: a subclass of either does something of its own.

    A quantized weight of torchao, for one, calls itself float32 and has nothing where its numbers would lie.
    """
    return type(module) is nn.Linear and type(getattr(module, "weight", None)) in (nn.Parameter, torch.Tensor)


def _packed(linear: nn.Linear) -> PrepackedLinear | None:
    try:
        packed = PrepackedLinear(linear)
        return packed if agrees(linear, packed) else None
    except (AttributeError, RuntimeError):
        return None  # a torch without these operators, or a shape they do not take


def agrees(linear: nn.Linear, other: nn.Module) -> bool:
    """Whether the other gives the very same numbers, for few rows and for many."""
    return all(_agrees(linear, other, rows) for rows in ROWS_TRIED)


def _agrees(linear: nn.Linear, other: nn.Module, rows: int) -> bool:
    generator = torch.Generator().manual_seed(rows)
    inputs = torch.randn(rows, linear.in_features, generator=generator).to(linear.weight.dtype)
    return torch.equal(linear(inputs), other(inputs))
