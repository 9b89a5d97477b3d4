"""Caches the outputs of a model's towers for images, sounds and videos: each turn of a chat sends the same ones again.

Of towers it knows only the model's methods `get_image_features`, `get_audio_features` and `get_video_features`. When
all outputs exceed `MOST_BYTES` together, the least recently used ones are dropped. Knows no prompts.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine.prefix_cache import Namespace

if TYPE_CHECKING:
    from transformers import PreTrainedModel

METHODS = ("get_image_features", "get_audio_features", "get_video_features")
MOST_BYTES = 256 * 2**20


class TowerCache:
    """Cached results for one model."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model
        self._kept: OrderedDict[tuple[Namespace, bytes], Any] = OrderedDict()
        self._bytes = 0

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    @contextmanager
    def used(self, namespace: Namespace) -> Iterator[None]:
        """Enter it around a forward: towers run only for what is not cached for this `namespace`."""
        found = [(module, name) for module in self._model.modules() for name in METHODS if hasattr(module, name)]
        for module, name in found:
            module.__dict__[name] = partial(self._result, getattr(module, name), namespace, name)
        try:
            yield
        finally:
            for module, name in found:
                del module.__dict__[name]

    def _result(self, method: Callable[..., Any], namespace: Namespace, name: str, *args: Any, **kwargs: Any) -> Any:
        if (digest := _digest([name, args, kwargs])) is None:
            return method(*args, **kwargs)
        key = namespace, digest
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        result = method(*args, **kwargs)
        self._kept[key] = result
        self._bytes += _size(result)
        while self._bytes > MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)
        return result


def _digest(value: Any) -> bytes | None:
    """A digest of the content of `value`; None if it holds an object whose content cannot be read."""
    content = hashlib.sha256()
    return content.digest() if _add(content, value) else None


def _add(content: "hashlib._Hash", value: Any) -> bool:
    match value:
        case torch.Tensor():
            content.update(repr((value.dtype, value.shape)).encode())
            content.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        case list() | tuple():
            content.update(f"{len(value)}[".encode())
            return all(_add(content, each) for each in value)
        case dict():
            return _add(content, list(value.items()))
        case None | bool() | int() | float() | str():
            content.update(f"{value!r}\0".encode())
        case _:
            return False
    return True


def _size(result: Any) -> int:
    """The bytes of all tensors in a result, however nested."""
    if isinstance(result, torch.Tensor):
        return result.nbytes
    values = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    return sum(map(_size, values))
