"""Which keys a layer's attention sees: a window before each query, in its own cache or in another layer's.

Found from the model's configuration and the arguments of its attention calls. Knows no step and no cache.
"""

from typing import Any, NamedTuple

import torch

#: The sliding window of a layer that does not pass one.
UNSAID = -1
#: Types of layers that are supported. Others select or compress keys, which shows only on longer prompts than those of
#: the probe.
LAYER_TYPES = {None, "full_attention", "sliding_attention", "chunked_attention", "hybrid"}


class Window(NamedTuple):
    """Which of the keys `k <= q` a query at position `q` may see: the last `sliding`, or those of its own chunk."""

    sliding: int | None = None
    chunk: int | None = None

    def mask(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Boolean, true where the key may be seen; positions broadcast against each other."""
        seen = keys <= queries
        if self.sliding is not None:
            seen = seen & (keys > queries - self.sliding)
        if self.chunk is not None:
            seen = seen & (keys // self.chunk == queries // self.chunk)
        return seen

    def first(self, query: int) -> int:
        """The first position that a query sees."""
        sliding = 0 if self.sliding is None else query - self.sliding + 1
        return max(0, sliding, 0 if self.chunk is None else query // self.chunk * self.chunk)


def window_of(module: torch.nn.Module, sliding: int | None) -> Window:
    """The layer's window. Cached on the layer: asking a configuration takes longer than a small product."""
    kept = module.__dict__.get("_nbgen_window")
    if kept is None or kept[0] != sliding:
        kept = module.__dict__["_nbgen_window"] = (sliding, _find_window(module, sliding))
    return kept[1]


def seen_window(module: torch.nn.Module) -> Window | None:
    """The window that the layer had when it last ran here; None if it has not run."""
    kept = module.__dict__.get("_nbgen_window")
    return kept and kept[1]


def _find_window(module: torch.nn.Module, sliding: int | None) -> Window:
    config: Any = getattr(module, "config", None)
    types = getattr(config, "layer_types", None)
    kind = types[module.layer_idx] if types else None
    if kind not in LAYER_TYPES:
        raise NotImplementedError(f"a layer of the type {kind}, which chooses its keys in a way of its own")
    if sliding == UNSAID or (sliding is None and kind == "sliding_attention"):  # only its mask may know the window
        sliding = _configured_window(config, kind)
    return Window(sliding, config.attention_chunk_size if kind == "chunked_attention" else None)


def _configured_window(config: Any, kind: str | None) -> int | None:
    """The window of a layer that leaves it to its mask; NotImplementedError if the configuration is ambiguous."""
    window = getattr(config, "sliding_window", None)
    if not window or kind not in (None, "sliding_attention"):
        return None
    if kind is None and window < config.max_position_embeddings:
        raise NotImplementedError("a sliding window that only the model's masks know")
    return window


def cached_by(module: Any) -> int:
    """The layer whose keys and values this one attends to: itself or an earlier one (Gemma 3n and 4). Cached on it."""
    kept = module.__dict__.get("_nbgen_cached_by")
    if kept is None:
        kept = module.__dict__["_nbgen_cached_by"] = _find_cached_by(module)
    return kept


def _find_cached_by(module: Any) -> int:
    number = int(module.layer_idx)
    if not getattr(module, "is_kv_shared_layer", False):
        return number
    types, shared = module.config.layer_types, module.config.num_kv_shared_layers
    return max((i for i, kind in enumerate(types[: len(types) - shared]) if kind == types[number]), default=number)
