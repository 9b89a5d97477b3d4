"""Which experts a mixture-of-experts model sent each token to: what its expert layers are called with, watched there.

Every family of transformers hands its `experts` one integer tensor `[tokens, experts per token]`. Nothing is watched
unless a request of the batch asks. Knows nothing of requests beyond who asks.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nbgen.engine.scheduler import ScheduledSequence

_LAYER = re.compile(r"\.(\d+)\.(?:.*\.)?experts$")


class Routes:
    """The experts of one forward, by layer: `[tokens, experts per token]`."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._layers: dict[int, torch.Tensor] = {}

    def watch(self, layer: int) -> Callable[..., None]:
        """A hook before the layer's experts."""

        def hook(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            self._layers[layer] = next(t for t in tensors if not t.is_floating_point()).flatten(0, -2)

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
    """Watches one model. `width` is the number of experts a token passes, zeros of other layers included; 0: none."""

    def __init__(self, model: torch.nn.Module) -> None:
        config = model.config.get_text_config()
        found = ((_LAYER.search(name), module) for name, module in model.named_modules())
        self._experts = [(int(match[1]), module) for match, module in found if match]
        self._num_layers = config.num_hidden_layers if self._experts else 0
        each = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_k", None) or 1
        self.width = self._num_layers * each

    def wanted(self, batch: Iterable[ScheduledSequence]) -> bool:
        """Whether any of the batch asks for its experts."""
        return bool(self._experts) and any(asks(item) for item in batch)

    @contextmanager
    def of(self, batch: Iterable[ScheduledSequence]) -> Iterator[Routes]:
        """Watch one forward if any of the batch asks for it."""
        routes = Routes(self._num_layers)
        watched = self._experts if self.wanted(batch) else []
        hooks = [module.register_forward_pre_hook(routes.watch(layer), with_kwargs=True) for layer, module in watched]
        try:
            yield routes
        finally:
            for hook in hooks:
                hook.remove()


def asks(item: ScheduledSequence) -> bool:
    """Whether the sequence wants its experts."""
    return item.sequence.tensors is not None and item.sequence.tensors.routed_experts is not None
