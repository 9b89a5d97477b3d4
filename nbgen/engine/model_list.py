"""Keeps transformers' list of its models between starts: making it from 1,500 files is a tenth of an engine's start.

It is in the user's cache folder, and serves until a file is added to a model or removed. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from nbgen.engine.cache_folder import cache_folder, drop_unused, keep, used

#: The module in which transformers makes lists.
MAKER = "transformers.utils.import_utils"
#: By the libraries that they need, and then by module: the names that a module has.
Names = dict[frozenset[str], dict[str, set[str]]]
Make = Callable[..., Names]

_Kept = list[tuple[list[str], dict[str, list[str]]]]


@contextmanager
def model_list_kept() -> Iterator[None]:
    """Have transformers use the list that is kept, if it is imported meanwhile."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Replaces the function that makes lists as soon as its module is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == MAKER else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:
            execute(module)
            models = Path(module.__file__ or "").parents[1] / "models"
            module.define_import_structure = _Lists(module.define_import_structure, models)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


class _Lists:
    """Makes a package's list as transformers does, except for that of `models`, which is kept."""

    def __init__(self, make: Make, models: Path) -> None:
        self._make = make
        self._models = models

    def __call__(self, path: str | os.PathLike[str], prefix: str | None = None) -> Names:
        if Path(path) not in (self._models, self._models / "__init__.py"):
            return self._make(path, prefix)
        before = "" if prefix is None else f"{prefix}."
        return {needed: {before + name: set(of) for name, of in by.items()} for needed, by in self._names.items()}

    @cached_property
    def _names(self) -> Names:
        with cache_folder() as folder:
            file = folder / f"models-{_state(self._models)}.msgpack"
            try:
                kept = msgspec.msgpack.decode(file.read_bytes(), type=_Kept)
            except (OSError, ValueError):
                names = self._make(self._models)
                drop_unused(folder, "models-*.msgpack")
                with suppress(OSError):  # a full disk does not stop an engine from starting
                    keep(file, lambda made: made.write_bytes(_encoded(names)))
                return names
            used(file)
        return {frozenset(needed): {name: set(of) for name, of in by.items()} for needed, by in kept}


def _encoded(names: Names) -> bytes:
    kept = [(sorted(needed), {name: sorted(of) for name, of in by.items()}) for needed, by in names.items()]
    return msgspec.msgpack.encode(kept)


def _state(models: Path) -> str:
    """A hash that changes when a file of a model is added or removed, or transformers is installed anew."""
    with os.scandir(models) as entries:
        changes = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries)
    return hashlib.sha256(repr((str(models), changes)).encode()).hexdigest()[:16]
