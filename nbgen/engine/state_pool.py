"""The state of recurrent and convolution layers: one slot a sequence, in tensors that grow with the slots in use.

The first states that a model computes give the shapes, since these are known to the model alone. Snapshots of states
have places of their own, whose number never grows. Knows neither sequences nor who owns a slot.
"""

import math
import sys
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin, LinearAttentionLayer

from nbgen.engine.upload import upload


def has_state(config: Any) -> bool:
    """Whether a model of this configuration has layers with state, and none of a kind unknown to transformers."""
    try:
        return any(_numbers_of_states(config))
    except KeyError:
        return False


class StateKey(NamedTuple):
    """One state of a model: a layer may have several of a kind (`conv_states`, `recurrent_states`)."""

    layer: int
    kind: str
    index: int  # type: ignore[assignment]  # hides the method of tuple


class _PassThrough:
    """The cache of an attention layer: passes keys and values on to the paged attention and keeps nothing."""

    is_sliding = False

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def get_seq_length(self) -> int:
        return 0


class _StateLayer(_PassThrough, LinearAttentionLayer):
    """The cache of a layer with state, and perhaps with attention as well."""


class StatePool:
    """States `[slots, ...]` of every layer with state, in the types that the model computes them in."""

    def __init__(self, config: Any) -> None:
        """`config` is the model's: it says of what kind each layer is."""
        self._counts = _numbers_of_states(config)
        self._states: dict[StateKey, torch.Tensor] = {}
        self._snapshots: dict[StateKey, torch.Tensor] = {}
        #: The most slots that there can be.
        self.most_slots = sys.maxsize
        #: How often a state tensor was replaced: pointers into the old one are invalid.
        self.moves = 0

    @property
    def bytes_per_slot(self) -> int:
        """The bytes of one slot in all layers seen so far."""
        return sum(math.prod(states.shape[1:]) * states.element_size() for states in self._states.values())

    @property
    def kinds(self) -> set[str]:
        """The kinds of the states seen so far."""
        return {key.kind for key in self._states}

    def fill(self, slot: int, kind: str, value: float) -> None:
        """Set all numbers of the slot's states of this kind to `value`."""
        for key, states in self._states.items():
            if key.kind == kind:
                states[slot] = value

    def clear(self) -> None:
        """Give up all slots and snapshots."""
        self._snapshots = {}
        self._states = {key: states[:0].clone() for key, states in self._states.items()}
        self.moves += 1

    def states(self, key: StateKey, slots: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The tensor `[slots or more, *shape]` itself, for writing in place. It is valid until `moves` changes.

        Raises ValueError where a forward has left states of another shape or type.
        """
        found = self._room(key, slots, torch.empty(0, *shape, dtype=dtype))
        if found.shape[1:] != shape or found.dtype != dtype:
            raise ValueError(f"the model keeps its {key.kind} as {found.dtype} {list(found.shape[1:])}")
        return found

    def fresh(self) -> Cache:
        """A transformers cache for sequences that begin."""
        layers: list[Any] = [_StateLayer(number) if number else _PassThrough() for number in self._counts]
        return Cache(layers=layers)

    def read(self, slots: list[int]) -> Cache:
        """A transformers cache with the states of `slots`, in this order. Adjacent slots are views, not copies."""
        cache = self.fresh()
        rows: slice | torch.Tensor | None = None
        for key, states in self._states.items():
            layer: Any = cache.layers[key.layer]
            rows = _rows(slots, states.device) if rows is None else rows
            state = states[rows]
            getattr(layer, key.kind)[key.index] = state
            getattr(layer, f"is_{key.kind}_initialized")[key.index] = True
            layer.has_previous_state[key.index] = True
            layer.dtype, layer.device = state.dtype, state.device
            if key.kind == "conv_states":
                layer.conv_kernel_size[key.index] = state.shape[-1]
        return cache

    def write(self, slots: list[int], cache: Cache) -> None:
        """Keep the states that a forward left in `cache`."""
        rows: slice | torch.Tensor | None = None
        for key, state in _states(cache):
            states = self._room(key, max(slots) + 1, state)
            rows = _rows(slots, states.device) if rows is None else rows
            if isinstance(rows, torch.Tensor) or states[rows].data_ptr() != state.data_ptr():
                states[rows] = state

    def reserve(self, snapshots: int) -> None:
        """Allocate so many snapshots of the layers seen so far. On a CPU each takes memory only once it is written."""
        self._snapshots = {key: states.new_empty(snapshots, *states.shape[1:]) for key, states in self._states.items()}

    def save(self, slot: int, snapshot: int) -> None:
        """Keep the slot's states as `snapshot`."""
        for key, kept in self._snapshots.items():
            kept[snapshot] = self._states[key][slot]

    def load(self, slot: int, snapshot: int) -> None:
        """Copy the states of `snapshot` into the slot."""
        for key, kept in self._snapshots.items():
            self._room(key, slot + 1, kept[snapshot : snapshot + 1])[slot] = kept[snapshot]

    def _room(self, key: StateKey, slots: int, like: torch.Tensor) -> torch.Tensor:
        """The tensor of all slots, grown to at least `slots` of them."""
        old = self._states.get(key)
        if old is not None and len(old) >= slots:
            return old
        twice = min(2 * (0 if old is None else len(old)), self.most_slots)
        new = like.new_zeros((max(slots, twice), *like.shape[1:]))
        if old is not None:
            new[: len(old)] = old
        self._states[key] = new
        self.moves += 1
        return new


def _rows(slots: list[int], device: torch.device) -> slice | torch.Tensor:
    """The index of the slots' states: a slice, which copies nothing, if the slots are adjacent and in order."""
    first, stop = slots[0], slots[0] + len(slots)
    return slice(first, stop) if slots == list(range(first, stop)) else upload(slots, device)


def _states(cache: Cache) -> list[tuple[StateKey, torch.Tensor]]:
    return [
        (StateKey(number, kind, index), state)
        for number, layer in enumerate(cache.layers)
        for kind in ("conv_states", "recurrent_states")
        for index, state in getattr(layer, kind, {}).items()
        if state is not None
    ]


def _numbers_of_states(config: Any) -> list[int]:
    """The number of states of each layer; 0 for one that has none."""
    return [
        layer.number_of_states if isinstance(layer, LinearAttentionCacheLayerMixin) else 0
        for layer in DynamicCache(config=config).layers
    ]
