"""Functions of a family's module in transformers, in place of which code of our own may run.

Does not know what they compute.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

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


def _home(module: nn.Module) -> Any:
    return sys.modules[type(module).__module__]
