"""Imports without torch and transformers, for a process that only compiles grammars.

xgrammar and llguidance import both for their types and for functions that such a process never calls: seconds, and
200 MB. Knows neither back end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

HEAVY = ("torch", "transformers")


def import_lightly(name: str, *, first: tuple[str, ...] = ()) -> ModuleType:
    """The module `name`, imported with stand-ins for torch and transformers; with the real ones where that fails.

    Modules in `first` are imported before, as if torch were not installed.
    """
    before = set(sys.modules)
    try:
        with _instead(dict.fromkeys(HEAVY)):
            for each in first:
                import_module(each)
        with _instead({each: StandIn(each) for each in HEAVY}):
            return import_module(name)
    except Exception:  # a library that needs more of them than their names
        return import_anew(name, before)


def import_anew(name: str, before: Set[str]) -> ModuleType:
    """Import a module again after a failed import: modules that it left are dropped, except parts of torch.

    Those register what they define, which works only once. `before` are the names of modules from before the import.
    """
    for each in sys.modules.keys() - before:
        if each.partition(".")[0] != "torch":
            del sys.modules[each]
    return import_module(name)


class StandIn(ModuleType):
    """A module in which every public name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {"__init__": lambda self, *values, **options: None})
        setattr(self, name, found)
        return found


@contextmanager
def _instead(modules: dict[str, Any]) -> Iterator[None]:
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
