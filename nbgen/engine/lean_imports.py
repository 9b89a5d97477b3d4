"""transformers, imported without what only others of its users need: a third of an engine's start.

It is told that torch's distributed tensors, accelerate and torchao are not installed, and does without as it does where
that is so. torch's compiler, whose marks are on functions that nobody compiles here, is imported when more is asked of
it; so is the algebra of symbolic shapes, which torch asks for whether a number is a symbol. And the list of
transformers' models is kept from one start to the next.
"""

from __future__ import annotations

import logging
import sys
import threading
from importlib import import_module
from typing import Any

from nbgen.engine import checkpoint, packed_layers, quantized_checkpoint
from nbgen.engine.later_module import put_off
from nbgen.engine.light_imports import import_anew
from nbgen.engine.model_list import model_list_kept
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError

ABSENT = {"accelerate", "torchao"}
#: Of functions and of tensors, for the compiler.
MARKS = {"allow_in_graph", "assume_constant_result", "disable", "mark_static_address"}
#: What torch asks of every number and truth, which may be symbols where something is compiled.
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
log = logging.getLogger(__name__)


def import_engine(config: EngineConfig) -> None:
    """Import `assembly`, leanly where it is known already that the model needs nothing that is left out."""
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
    except (ModelError, OSError):  # said by whoever loads the model
        return False


def _may_use_a_gpu(config: EngineConfig) -> bool:
    if config.device == "cpu":
        return False
    import torch

    return torch.cuda.is_available()


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
    sys.modules.update(dict.fromkeys(ABSENT - sys.modules.keys()))  # type: ignore[arg-type]  # None: absent
    _put_off_what_nobody_needs()
    try:
        with model_list_kept():
            import_module(name)
    except Exception:  # another transformers, which asks for more
        log.info("transformers is imported whole", exc_info=True)
        torch.distributed.is_available = has_distributed
        import_anew(name, before)


def _put_off_what_nobody_needs() -> None:
    put_off("torch._dynamo", alone={"_trace_wrapped_higher_order_op"}, **dict.fromkeys(MARKS, _as_it_is))
    put_off("torch.fx.experimental.symbolic_shapes", **WITHOUT_SYMBOLS)
    put_off("sympy", Basic=_Expression)


class _Expression:
    """What nothing is an instance of as long as there is no algebra."""


def _as_it_is(marked: Any = None, *_: Any, **__: Any) -> Any:
    """A mark, with or without arguments of its own."""
    return _as_it_is if marked is None else marked
