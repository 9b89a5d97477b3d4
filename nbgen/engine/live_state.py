"""What a model's answers depend on, and what of it is other than it was when last looked at.

Its parts are modules, parameters, buffers, hooks and the code of classes; its numbers are what parameters and buffers
hold; its settings are all other attributes of modules, configurations and data classes, such as adapters that are
switched on, or their scaling. Nothing is known by name, of whatever library it is. A look happens before each step: it
copies nothing, and what it does for each module is done in C.
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

#: Where a module keeps its parts.
PLACES = ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks")
#: What every module has.
OWN = frozenset(nn.Module().__dict__)
#: Settings that are the engine's own to choose, like all private ones of a configuration.
ENGINES = frozenset({"use_cache", "output_hidden_states", "output_attentions"})
DATA = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device)
#: Numbers of each tensor that are looked at.
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
        """Whether they are other ones than at first."""
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
    """What tensors hold: each change that torch counts, other memory, and by a sample what goes past torch's count."""

    _versions: list[int]
    _sampled: list[torch.Tensor]

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if _is_plain(tensor)]
        self._kinds = self._kinds_now()
        self._look()

    def changed(self) -> bool:
        """Whether they hold others than when this was last asked."""
        if self._pointers_now() != self._pointers:
            self._look()
            return True
        versions, self._versions = self._versions, self._versions_now()
        sampled, self._sampled = self._sampled, self._sampled_now()
        return versions != self._versions or not all(map(torch.equal, sampled, self._sampled))

    def converted(self) -> bool:
        """Whether they are of another type, shape or device than at first."""
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
        """Bits, as numbers that are none would differ from themselves."""
        return [torch.cat(samples).view(torch.uint8) for samples in self._samples]

    def _kinds_now(self) -> list[Any]:
        return [(tensor.dtype, tensor.device, tensor.shape) for tensor in self._tensors]


class Settings:
    """Attributes of objects, `[object, its twin]` each; the twins follow them."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._modules = [vars(each) for each, _ in pairs if isinstance(each, nn.Module)]
        self._owners = [(vars(each), vars(twin)) for each, twin in pairs]
        self._look()

    def changed(self) -> bool:
        """Whether they are others than when last followed."""
        try:
            return (
                list(map(len, self._modules)) != self._lengths
                or [read(attributes) for read, attributes in self._readers] != self._seen
            )
        except (KeyError, RuntimeError, TypeError, ValueError):  # one is gone, or a tensor is another
            return True

    def follow(self) -> bool:
        """Give the twins the settings of now; whether that can be, which only plain data can."""
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
        # Of one name alone, no tuple would be read.
        self._readers = [(itemgetter(*kept, next(iter(kept))), attributes) for attributes, kept in found]
        self._seen = [read(kept) for (read, _), (_, kept) in zip(self._readers, found, strict=True)]


def configurations(modules: Iterable[nn.Module]) -> list[Any]:
    """Those that modules look at, of transformers or of plain data classes, once each."""
    return list({id(each): each for each in _attributes(modules) if _configures(each)}.values())


def tensors(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Those that are neither parameters nor buffers."""
    return [each for each in _attributes(modules) if isinstance(each, torch.Tensor)]


def _attributes(modules: Iterable[nn.Module]) -> Iterator[Any]:
    return (value for module in modules for value in vars(module).copy().values())


def _configures(value: Any) -> bool:
    if isinstance(value, PreTrainedConfig | SimpleNamespace):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def _settings(attributes: dict[str, Any]) -> dict[str, Any]:
    """Of a module or a configuration."""
    items = attributes.copy().items()  # which their owner may add to meanwhile
    if "_modules" in attributes:
        return {name: value for name, value in items if name not in OWN}
    return {name: value for name, value in items if name not in ENGINES and not name.startswith("_")}


def _copied(value: Any) -> Any:
    """What of a value may change in place, with everything else as it is."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
        return kind(map(_copied, value))
    return value.detach() if isinstance(value, torch.Tensor) and not value.is_leaf else value


def _is_data(value: Any) -> bool:
    """Whether a copy is as good as the value: not so of code, or of what has a state of its own."""
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
    """Whether torch counts its changes, and its numbers lie in one piece of memory."""
    try:
        tensor.data_ptr()
    except RuntimeError:  # of a kind of its own, such as a quantized one
        return False
    return not tensor.is_inference() and tensor.numel() > 0 and tensor.layout == torch.strided


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A few of its numbers, where they are."""
    numbers = tensor.detach().view(torch.uint8) if tensor.itemsize == 1 else tensor.detach()
    if not numbers.is_contiguous():
        return numbers[(slice(0, 1),) * numbers.dim()].flatten()
    every = max(1, numbers.numel() // SAMPLED)
    return numbers.as_strided((min(SAMPLED, numbers.numel()),), (every,))
