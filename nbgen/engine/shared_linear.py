"""Linear layers that read the same tensor, computed as one product: query, key and value; gate and up. CPU only.

A forward shows which layers these are; their names are not used. The first of them that is called computes for all, and
the others pick up their part. Layers are only joined if the results are bit-identical to those of separate products.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import groupby

import torch
from torch import nn

from nbgen.engine import memory
from nbgen.engine.linear import PrepackedLinear, Swap, agrees, run, suits


class SharedLinear:
    """One layer instead of several. It keeps its output for the last input until each has taken its part."""

    def __init__(self, linears: list[nn.Linear], make: Callable[[nn.Linear], nn.Module] = PrepackedLinear) -> None:
        self._sizes = [linear.out_features for linear in linears]
        self.linear = make(joined(linears))
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, input: torch.Tensor, index: int) -> torch.Tensor:
        """The output of layer `index` for `input` `[..., in_features]`."""
        if input is not self._input or index not in self._parts:
            self._parts = dict(enumerate(self.linear(input).split(self._sizes, dim=-1)))
        part = self._parts.pop(index)
        self._input = input if self._parts else None
        return part


#: A linear layer: its parent, its name there, and the layer.
Place = tuple[nn.Module, str, nn.Linear]


class Part(nn.Module):
    """Stands in the place of one of the layers."""

    def __init__(self, shared: SharedLinear, index: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.shared, self._index = shared, index

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.shared.part(input, self._index)


@torch.inference_mode()
def share(model: nn.Module, ids: list[int]) -> list[Swap]:
    """Join the model's layers that read the same tensor while it runs on `ids`; returns each with its place."""
    swaps: list[Swap] = []
    for places in groups_with_same_input(model, ids, suits):
        linears = [linear for _, _, linear in places]
        for (parent, name, linear), part in zip(places, _parts(linears), strict=False):
            setattr(parent, name, part)
            memory.drop_pages(linear.weight)
            swaps.append((parent, name, linear))
    return swaps


def groups_with_same_input(model: nn.Module, ids: list[int], suits: Callable[[nn.Module], bool]) -> list[list[Place]]:
    """Groups of two or more layers of one parent that are called one after the other with the same tensor object."""
    calls: list[tuple[Place, torch.Tensor]] = []
    named = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    places = [(parent, name, child) for parent, name, child in named if type(child) is nn.Linear and suits(child)]
    if not places:
        return []

    def note(place: Place, _: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        calls.append((place, inputs[0]))

    with ExitStack() as hooks:
        for place in places:
            hooks.enter_context(place[2].register_forward_pre_hook(partial(note, place)))
        run(model, ids)
    groups = groupby(calls, key=lambda call: (id(call[0][0]), id(call[1])))
    found = [[place for place, _ in group] for _, group in groups]
    return [places for places in found if len(places) > 1 and len({name for _, name, _ in places}) == len(places)]


def joined(linears: list[nn.Linear]) -> nn.Linear:
    """One layer with the outputs of all of them, one after the other."""
    weight = torch.cat([linear.weight for linear in linears])
    whole = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if any(linear.bias is not None for linear in linears):
        biases: list[torch.Tensor] = [weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in linears]
        whole.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return whole


def _parts(linears: list[nn.Linear]) -> list[Part]:
    """The layers' stand-ins; empty if these would not give the same numbers."""
    try:
        shared = SharedLinear(linears)
        parts = [Part(shared, index, linear) for index, linear in enumerate(linears)]
        return parts if all(agrees(x, part) for x, part in zip(linears, parts, strict=True)) else []
    except (AttributeError, RuntimeError):
        return []  # a torch without these operators, or a shape they do not take
