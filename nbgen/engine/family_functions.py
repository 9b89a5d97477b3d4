"""Replaces functions in transformers' module of a model family by our own code.

Does not know what they compute.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from nbgen.engine.linear import Swap

Function = Callable[..., Any]


def replace(model: nn.Module, instead: Mapping[str, Callable[[Function], Function]]) -> list[Swap]:
    """Replace functions by what `instead` makes from them, by name; returns the originals, for `linear.restore`.

    Does nothing for a model that is not on a CPU.
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


def _home(module: nn.Module) -> Any:
    return sys.modules[type(module).__module__]
