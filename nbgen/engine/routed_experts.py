"""Which experts a mixture-of-experts model routed each token to, read by hooks from what its expert layers are given.

Every family of transformers hands its `experts` one integer tensor `[tokens, experts per token]`. Llama 4 does not: it
computes all experts, so its router's scores are read. Hooks are set only if a request of the batch asks. Knows nothing
else of requests.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine.scheduler import ScheduledSequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r"\.(\d+)\.(?:.*\.)?experts$")


class Routes:
    """The experts of one forward, by layer: `[tokens, experts per token]`."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._layers: dict[int, torch.Tensor] = {}

    def watch(self, layer: int) -> Callable[..., None]:
        """A hook to run before the layer's experts, which notes the indices that they are called with."""

        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            self._layers[layer] = next(t for t in tensors if not t.is_floating_point()).flatten(0, -2)

        return hook

    def watch_router(self, layer: int, count: int) -> Callable[..., None]:
        """A hook to run after a router, which returns weights and scores `[tokens, experts]`: the `count` highest."""

        def hook(_: torch.nn.Module, __: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
            self._layers[layer] = output[1].topk(count, dim=-1).indices.flatten(0, -2)

        return hook

    def rows(self, start: int, stop: int) -> torch.Tensor | None:
        """`[stop - start, layers, experts per token]` of packed rows; layers without experts have zeros."""
        if not self._layers:
            return None
        some = next(iter(self._layers.values()))
        found = some.new_zeros(stop - start, self._num_layers, some.shape[-1])
        for layer, experts in self._layers.items():
            found[:, layer] = experts[start:stop]
        return found


class RoutedExperts:
    """Watches one model. `width` is how many numbers a token gets: experts of all layers, or zeros; 0: no experts."""

    def __init__(self, model: "PreTrainedModel") -> None:
        config, modules = model.config.get_text_config(), dict(model.named_modules())
        found = [(int(match[1]), name) for name in modules if (match := _LAYER.search(name))]
        self._experts = [(layer, modules[name]) for layer, name in found if _is_told(modules[name])]
        beside = [(layer, name.removesuffix("experts") + "router") for layer, name in found]
        self._routers = [(layer, modules[name]) for layer, name in beside if name in modules and not self._experts]
        self._num_layers = config.num_hidden_layers if self._experts or self._routers else 0
        self._each = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_k", None) or 1
        self.width = self._num_layers * self._each

    @contextmanager
    def of(self, batch: Iterable[ScheduledSequence]) -> Iterator[Routes]:
        """Watch one forward if any of the batch asks for it."""
        routes = Routes(self._num_layers)
        with ExitStack() as hooks:
            if self.width and any(map(asks, batch)):
                for i, m in self._experts:
                    hooks.enter_context(m.register_forward_pre_hook(routes.watch(i), with_kwargs=True))
                for i, m in self._routers:
                    hooks.enter_context(m.register_forward_hook(routes.watch_router(i, self._each)))
            yield routes


def _is_told(experts: torch.nn.Module) -> bool:
    """Whether the module is called with the experts of each token besides the tokens."""
    return len(inspect.signature(experts.forward).parameters) > 1


def asks(item: ScheduledSequence) -> bool:
    """Whether the sequence wants its experts."""
    return item.sequence.tensors is not None and item.sequence.tensors.routed_experts is not None
