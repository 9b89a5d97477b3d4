"""Lazy modules: a stand-in has a few given names, and imports the real module when anything else is asked of it."""

from __future__ import annotations

import sys
from collections.abc import Set
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def put_off(name: str, *, alone: Set[str] = frozenset(), **given: Any) -> None:
    """Import `name` only when a name not in `given` is read from it, or a submodule not in `alone` is imported.

    Does nothing where it has been imported already, or is not installed.
    """
    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    sys.modules[name] = LaterModule(name, spec.submodule_search_locations or [], alone, given)
    if not any(isinstance(finder, _Parts) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Parts())


class LaterModule(ModuleType):
    """Has the given names; when any other is read, the module itself replaces it."""

    def __init__(self, name: str, path: list[str], alone: Set[str], given: dict[str, Any]) -> None:
        super().__init__(name)
        self.__dict__.update(given)
        self.__path__ = path
        self.__alone__ = alone

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.come(), name)

    def come(self) -> ModuleType:
        """Import the module itself in place of this one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)


class _Parts(MetaPathFinder):
    """Has a lazy module imported before its submodules, except for those that do not need it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, part = name.rpartition(".")
        later = sys.modules.get(package)
        if not isinstance(later, LaterModule) or part in later.__alone__:
            return None
        later.come()
        return imported_meanwhile(name)


def imported_meanwhile(name: str) -> ModuleSpec | None:
    """What a finder says that has imported another module, which has imported this one or not."""
    module = sys.modules.pop(name, None)  # or the import would run it again
    return None if module is None else ModuleSpec(name, _Imported(module))


class _Imported(Loader):
    """Of a module that has been imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec  # as some let nobody set what is no option
