"""What a model's answers depend on, and whether it has changed since the last look.

A model's parts are modules, parameters, buffers, hooks and the code of classes; its numbers are what parameters and
buffers hold; its settings are all other attributes of modules, configurations and data classes, such as adapters that
are switched on, or their scaling. No library's attributes are known by name. A look happens before each step: it copies
nothing, and the work for each module is done in C.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import is_, itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

#: The attributes in which a module keeps its parts.
PLACES = ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks")
#: Attributes that every module has.
OWN = frozenset(nn.Module().__dict__)
#: Settings that are the engine's own to choose, like all private ones of a configuration.
ENGINES = frozenset({"use_cache", "output_hidden_states", "output_attentions"})
DATA = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device)
#: How many numbers of each tensor are sampled.
SAMPLED = 4


class Parts:
    """Which modules, parameters, buffers and hooks there are, and whose code runs."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        places = [module.__dict__[name] for module in modules for name in PLACES]
        self._modules, self._types = modules, list(map(type, modules))
        self._empty = [place for place in places if not place]
        self._full = [place for place in places if place]
        self._parts = self._now()
        self._classes: set[Any] = set(self._types)
        self._code = [each.forward for each in self._classes]

    def changed(self) -> bool:
        """Whether any has changed since this object was made."""
        now = self._now()
        return (
            any(self._empty)
            or len(now) != len(self._parts)
            or not all(map(is_, now, self._parts))
            or list(map(type, self._modules)) != self._types
            or [each.forward for each in self._classes] != self._code
        )

    def _now(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._full)))


class Numbers:
    """What tensors hold. Sees changes that torch counts, other memory, and by a sample changes torch does not count."""

    _versions: list[int]
    _sampled: list[torch.Tensor]

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if _is_plain(tensor)]
        self._kinds = self._kinds_now()
        self._look()

    def changed(self) -> bool:
        """Whether the numbers have changed since this was last called."""
        if self._pointers_now() != self._pointers:
            self._look()
            return True
        versions, self._versions = self._versions, self._versions_now()
        sampled, self._sampled = self._sampled, self._sampled_now()
        return versions != self._versions or not all(map(torch.equal, sampled, self._sampled))

    def converted(self) -> bool:
        """Whether any tensor has another type, shape or device than when this object was made."""
        return self._pointers_now() != self._pointers and self._kinds_now() != self._kinds

    def _look(self) -> None:
        self._pointers, self._versions = self._pointers_now(), self._versions_now()
        samples: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in self._tensors:
            samples.setdefault((tensor.dtype, tensor.device), []).append(_sample(tensor))
        self._samples = list(samples.values())
        self._sampled = self._sampled_now()

    def _pointers_now(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._tensors))

    def _versions_now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    @torch.no_grad()
    def _sampled_now(self) -> list[torch.Tensor]:
        """The samples' bytes, because NaNs would differ from themselves."""
        return [torch.cat(samples).view(torch.uint8) for samples in self._samples]

    def _kinds_now(self) -> list[Any]:
        return [(tensor.dtype, tensor.device, tensor.shape) for tensor in self._tensors]


class Settings:
    """Attributes of objects, given as pairs `(object, twin)`; each twin follows its object."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._modules = [vars(each) for each, _ in pairs if isinstance(each, nn.Module)]
        self._owners = [(vars(each), vars(twin)) for each, twin in pairs]
        self._look()

    def changed(self) -> bool:
        """Whether they have changed since `follow` last gave them to the twins."""
        try:
            return (
                list(map(len, self._modules)) != self._lengths
                or [read(attributes) for read, attributes in self._readers] != self._seen
            )
        except (KeyError, RuntimeError, TypeError, ValueError):  # an attribute is gone, or a tensor has changed
            return True

    def follow(self) -> bool:
        """Give the twins the present settings; returns False if a changed one is not plain data."""
        given = []
        for (attributes, twin), before in zip(self._owners, self._kept, strict=True):
            now = _settings(attributes)
            other = {name: now[name] for name in now if name not in before or not _equal(now[name], before[name])}
            gone = before.keys() - now.keys()
            if not all(map(_is_data, [*other.values(), *(before[name] for name in gone)])):
                return False
            given.append((twin, other, gone))
        for twin, other, gone in given:
            twin.update(_copied(other))
            for name in gone:
                twin.pop(name, None)
        self._look()
        return True

    def _look(self) -> None:
        self._lengths = list(map(len, self._modules))
        self._kept = [_copied(_settings(attributes)) for attributes, _ in self._owners]
        found = [(each, kept) for (each, _), kept in zip(self._owners, self._kept, strict=True) if kept]
        # One name is repeated: with a single name `itemgetter` would return no tuple.
        self._readers = [(itemgetter(*kept, next(iter(kept))), attributes) for attributes, kept in found]
        self._seen = [read(kept) for (read, _), (_, kept) in zip(self._readers, found, strict=True)]


def configurations(modules: Iterable[nn.Module]) -> list[Any]:
    """The configurations that modules have as attributes (transformers' or data classes), once each."""
    return list({id(each): each for each in _attributes(modules) if _configures(each)}.values())


def tensors(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The tensors that modules have as attributes, without parameters and buffers."""
    return [each for each in _attributes(modules) if isinstance(each, torch.Tensor)]


def _attributes(modules: Iterable[nn.Module]) -> Iterator[Any]:
    return (value for module in modules for value in vars(module).copy().values())


def _configures(value: Any) -> bool:
    if isinstance(value, PreTrainedConfig | SimpleNamespace):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def _settings(attributes: dict[str, Any]) -> dict[str, Any]:
    """The settings among the attributes of a module or a configuration."""
    items = attributes.copy().items()  # a copy: their owner may add to them meanwhile
    if "_modules" in attributes:
        return {name: value for name, value in items if name not in OWN}
    return {name: value for name, value in items if name not in ENGINES and not name.startswith("_")}


def _copied(value: Any) -> Any:
    """A copy of the containers in a value, which may change in place; all else is shared."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
        return kind(map(_copied, value))
    return value.detach() if isinstance(value, torch.Tensor) and not value.is_leaf else value


def _is_data(value: Any) -> bool:
    """Whether a copy is as good as the value, which code and objects with a state of their own are not."""
    if type(value) is dict:
        return all(map(_is_data, [*value, *value.values()]))
    if type(value) in (list, tuple, set):
        return all(map(_is_data, value))
    return isinstance(value, DATA)


def _equal(value: Any, before: Any) -> bool:
    try:
        return bool(value == before)
    except (RuntimeError, TypeError, ValueError):
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether torch counts the tensor's changes, and its numbers lie in one piece of memory."""
    try:
        tensor.data_ptr()
    except RuntimeError:  # of a kind of its own, such as a quantized one
        return False
    return not tensor.is_inference() and tensor.numel() > 0 and tensor.layout == torch.strided


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a few of its numbers."""
    numbers = tensor.detach().view(torch.uint8) if tensor.itemsize == 1 else tensor.detach()
    if not numbers.is_contiguous():
        return numbers[(slice(0, 1),) * numbers.dim()].flatten()
    every = max(1, numbers.numel() // SAMPLED)
    return numbers.as_strided((min(SAMPLED, numbers.numel()),), (every,))
