"""Imports torch without its functions in Python that tell a result's shape: a quarter of its import.

They are for tensors without numbers, by which transformers first makes a model, and torch's compiler all else. For most
operations torch has such functions in C++ as well. Those in Python come when they are imported from anywhere, or asked
for here.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nbgen.engine.later_module import imported_meanwhile

#: Of torch, how its versions begin of which it is known that they need no more than is done here; with the class that
#: the functions of random numbers, which are among them, give torch's generators.
KNOWN = {
    "2.13.": ("torch._opaque_base", "OpaqueBaseMeta"),
    "2.14.": ("torch._custom_class_base", "CustomClassBaseMeta"),
    "2.15.": ("torch._custom_class_base", "CustomClassBaseMeta"),
}
SHAPES = "torch._meta_registrations"
#: How the names of modules begin that only those functions import.
PARTS = ("torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store")


def import_torch() -> Any:
    """torch without these functions, if it has not been imported yet and is of a known version."""
    version = metadata.version("torch")
    known = next((what for begins, what in KNOWN.items() if version.startswith(begins)), None)
    if "torch" in sys.modules or known is None:
        return import_module("torch")
    sys.modules[SHAPES] = ModuleType(SHAPES)
    try:
        torch = import_module("torch")
    finally:
        del sys.modules[SHAPES]
    vars(torch).pop(SHAPES.rpartition(".")[2], None)
    sys.meta_path.insert(0, _Whole())
    torch._C._set_generator_metaclass(getattr(import_module(known[0]), known[1]))
    return torch


def import_shape_functions() -> None:
    """Have torch know all of them."""
    import_module(SHAPES)


class _Whole(MetaPathFinder):
    """Has all imported before a part: parts that are imported in another order do not find one another."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith((SHAPES, *PARTS)):
            return None
        sys.meta_path.remove(self)
        if name == SHAPES:
            return None
        import_shape_functions()
        return imported_meanwhile(name)
