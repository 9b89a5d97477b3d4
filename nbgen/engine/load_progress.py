"""How far transformers is with a model's weights, told in bytes. Knows nothing of what they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

from nbgen.engine.checkpoint import Report
from nbgen.safetensors_file import Entry


@contextmanager
def weights_progress(held: dict[str, Entry], total: int, report: Report) -> Iterator[None]:
    """Follow transformers' own progress bars, whose items are the model's tensors, and report bytes loaded of `total`.

    An item made of several of the files' tensors has no size there: all such items count alike.
    """
    sizes = {name: tensor.nbytes for name, tensor in held.items()}

    class Progress:
        def __init__(self, iterable: Any = None, **_: Any) -> None:
            self._items = list(iterable or ())

        def __iter__(self) -> Iterator[Any]:
            known = [sizes.get(_name(item), 0) for item in self._items]
            alike = (sum(sizes.values()) - sum(known)) // max(1, known.count(0))
            done = 0
            for item, size in zip(self._items, known, strict=True):
                yield item
                done += size or alike
                report("loading weights", done, total)

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *args, **kwargs: None

    previous = transformers_logging.set_tqdm_hook(lambda _, args, kwargs: Progress(*args, **kwargs))
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


def _name(item: Any) -> str:
    return item[0] if isinstance(item, tuple) and item and isinstance(item[0], str) else ""
