"""transformers, imported without what only others of its users need: a third of an engine's start.

It is told that torch's distributed tensors, accelerate and torchao are not installed, and does without as it does where
that is so. torch's compiler, whose marks are on functions that nobody compiles here, is imported when more is asked of
it. And the list of transformers' models is made once, not twice.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from nbgen.engine import checkpoint, quantized_checkpoint
from nbgen.engine.light_imports import import_anew
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError

ABSENT = {"accelerate", "torchao"}
COMPILER = "torch._dynamo"
#: A part of it that needs no other.
ALONE = "_trace_wrapped_higher_order_op"

_one_at_a_time = threading.Lock()
log = logging.getLogger(__name__)


def import_engine(config: EngineConfig) -> None:
    """Import `assembly`, leanly where it is known already that the model needs nothing that is left out."""
    if is_plain(config):
        import_leanly("nbgen.engine.assembly")


def is_plain(config: EngineConfig) -> bool:
    """Whether neither compiler nor torchao are needed, as far as that can be told before a download."""
    import torch

    rounds_on_a_gpu = config.quantization is not None and config.device != "cpu" and torch.cuda.is_available()
    if config.compile or rounds_on_a_gpu or (folder := checkpoint.present(config.model)) is None:
        return False
    try:
        return quantized_checkpoint.description(folder, config.model) is None
    except ModelError:  # said by whoever loads the model
        return False


def import_leanly(name: str) -> None:
    """Import a module that imports transformers; as usual if that fails, or if transformers is there already."""
    with _one_at_a_time:
        if "transformers" in sys.modules:
            import_module(name)
        else:
            _import_leanly(name)


def _import_leanly(name: str) -> None:
    import torch

    before, has_distributed = set(sys.modules), torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    sys.modules.update(dict.fromkeys(ABSENT - sys.modules.keys()))
    if COMPILER not in sys.modules and (spec := PathFinder.find_spec(COMPILER, torch.__path__)):
        sys.modules[COMPILER] = _CompilerLater(spec.submodule_search_locations or [])
        sys.meta_path.insert(0, _Parts())
    try:
        with _models_listed_once():
            import_module(name)
    except Exception:  # another transformers, which asks for more
        log.info("transformers is imported whole", exc_info=True)
        torch.distributed.is_available = has_distributed
        import_anew(name, before)


class _CompilerLater(ModuleType):
    """Has the marks of functions for the compiler, which change nothing; for anything else it makes way for itself."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(COMPILER)
        self.__path__ = path
        self.allow_in_graph = self.assume_constant_result = self.disable = _as_it_is

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.come(), name)

    def come(self) -> ModuleType:
        """The compiler."""
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return import_module(COMPILER)


class _Parts(MetaPathFinder, Loader):
    """Finds the parts of the compiler once it is there itself, since all but `ALONE` need it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, part = name.rpartition(".")
        later = sys.modules.get(package)
        if not isinstance(later, _CompilerLater) or part == ALONE:
            return None
        later.come()
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has come with the rest."""


def _as_it_is(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Callable[..., Any]:
    """A mark, with or without arguments of its own."""
    return function or _as_it_is


@contextmanager
def _models_listed_once() -> Iterator[None]:
    """Let the package of models use the list that transformers made for itself, from the very same files."""
    import transformers.utils.import_utils as lists

    make = lists.create_import_structure_from_path
    models = Path(lists.__file__).parents[1] / "models"

    def once(path: str | os.PathLike[str]) -> Any:
        return make(models if Path(path) == models / "__init__.py" else path)

    lists.create_import_structure_from_path = once
    try:
        yield
    finally:
        lists.create_import_structure_from_path = make
