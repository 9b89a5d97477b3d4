"""Imports transformers without what nbgen does not need of it, which would be a third of an engine's start.

transformers is told that torch's distributed tensors, accelerate, torchao and torchvision are not installed, and does
without them. torchvision makes images into tensors, as Pillow does for most models; it imports torch's compiler.
torch's compiler, which only marks functions here, is imported when anything else of it is used. So is the algebra of
symbolic shapes, which torch only asks whether a number is a symbol, and of functions that tell shapes. And the list of
transformers' models is kept from one start to the next.
"""

from __future__ import annotations

import logging
import sys
import threading
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from nbgen.engine import checkpoint, packed_layers, quantized_checkpoint
from nbgen.engine.later_module import put_off
from nbgen.engine.light_imports import import_anew
from nbgen.engine.model_list import model_list_kept
from nbgen.engine.shape_functions import import_shape_functions, import_torch
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError

TORCHVISION = "torchvision"
ABSENT = ("accelerate", "torchao", TORCHVISION)
#: The compiler's marks for functions and tensors.
MARKS = {"allow_in_graph", "assume_constant_result", "disable", "mark_static_address"}
#: Functions that torch calls on every number and truth value, for use where none is a symbol, as only compiling makes.
WITHOUT_SYMBOLS: dict[str, Any] = {
    **dict.fromkeys(("expect_true", "statically_known_true"), bool),
    **dict.fromkeys(("guard_or_false", "guard_or_true", "guard_size_oblivious"), bool),
    "guarding_hint_or_throw": lambda number: number,
    "has_free_unbacked_symbols": lambda value: False,
    "has_guarding_hint": lambda number: True,
    "has_hint": lambda number: True,
    "size_hint": lambda number: number,
    "is_nested_int": lambda number: False,
    "sym_and": lambda *truths: all(truths),
    "sym_or": lambda *truths: any(truths),
    "sym_eq": lambda one, other: one == other,
}

_one_at_a_time = threading.Lock()
_absent: set[str] = set()
log = logging.getLogger(__name__)


class LeftOut(Exception):
    """The model needs the package of this name, which this process does without: only another one can import it."""


def leave_out(package: str, *, for_good: bool = False) -> None:
    """Whoever asks is told that it is not installed, unless it is imported already; `for_good` if nothing needs it."""
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    if for_good:
        _absent.add(package)


def is_left_out(package: str) -> bool:
    """Whether it is installed all the same, and not left out for good."""
    return sys.modules.get(package, sys) is None and package not in _absent and bool(PathFinder.find_spec(package))


def import_or_leave_out(package: str) -> None:
    """Import it. If that fails (torchvision made for another torch), it is left out for good."""
    try:
        import_module(package)
    except Exception:  # it runs code of its own, which may raise anything
        log.warning("%s is installed, but cannot be imported: the model does without", package, exc_info=True)
        leave_out(package, for_good=True)


def import_engine(config: EngineConfig) -> None:
    """Import `assembly` leanly, if it is known already that the model needs nothing that is left out."""
    if is_plain(config):
        import_leanly("nbgen.engine.assembly")


def is_plain(config: EngineConfig) -> bool:
    """Whether neither compiler nor torchao are needed, as far as that can be told before a download."""
    if config.compile or (folder := checkpoint.present(config.model)) is None:
        return False
    try:
        described = quantized_checkpoint.description(folder, config.model)
        if described is None:
            return config.quantization is None or not _may_use_a_gpu(config)
        held = checkpoint.tensors(folder)
        return packed_layers.read(described, held, config.model) is not None and not _may_use_a_gpu(config)
    except (ModelError, OSError):  # the loader reports it
        return False


def _may_use_a_gpu(config: EngineConfig) -> bool:
    if config.device == "cpu":
        return False
    import torch

    return torch.cuda.is_available()


def import_leanly(name: str) -> None:
    """Import leanly a module that imports transformers; as usual if that fails, or transformers is imported already."""
    with _one_at_a_time:
        if "transformers" in sys.modules:
            import_module(name)
        else:
            _import_leanly(name)


def _import_leanly(name: str) -> None:
    torch = import_torch()
    before, has_distributed = set(sys.modules), torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    for package in ABSENT:
        leave_out(package)
    _put_off_what_nobody_needs()
    try:
        with model_list_kept():
            import_module(name)
    except Exception:  # another version of transformers, which needs more
        log.info("transformers is imported whole", exc_info=True)
        torch.distributed.is_available = has_distributed
        import_shape_functions()
        import_anew(name, before)


def _put_off_what_nobody_needs() -> None:
    put_off("torch._dynamo", alone={"_trace_wrapped_higher_order_op"}, **dict.fromkeys(MARKS, _as_it_is))
    put_off("torch.fx.experimental.symbolic_shapes", **WITHOUT_SYMBOLS)
    put_off("sympy", Basic=_Expression)


class _Expression:
    """In place of sympy's class, of which nothing is an instance until sympy is imported."""


def _as_it_is(marked: Any = None, *_: Any, **__: Any) -> Any:
    """A mark that changes nothing, as a decorator with or without arguments."""
    return _as_it_is if marked is None else marked
