"""The process that checks and compiles grammars, `python -m nbgen.engine.grammar_worker BACKEND`.

Compilers recurse and explode on hostile grammars: here one may take too long, use up its memory or crash, and only
this process ends. It also ends when its input does. Knows no requests.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from importlib import import_module

import msgspec

from nbgen.engine.call_arguments import worked_out
from nbgen.engine.grammar import Backend, Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.engine.light_imports import import_lightly
from nbgen.engine.loose_schema import as_told
from nbgen.engine.process import live_and_die_with_parent
from nbgen.engine.worker_channel import Pipes, limit_memory, limit_stack
from nbgen.engine.worker_process import Started
from nbgen.sampling_params import LENIENT

MAX_BYTES = 2**30
#: Bytes of stack: less than a thread of the engine has, which may compile the same grammar again.
MAX_STACK = 2**20
BACKENDS = {
    "xgrammar": ("nbgen.engine.grammar_xgrammar", "XGrammarBackend"),
    "llguidance": ("nbgen.engine.grammar_llguidance", "LLGuidanceBackend"),
}
#: Libraries beneath the back ends that use torch only where it is installed.
WITHOUT_TORCH: dict[str, tuple[str, ...]] = {"xgrammar": ("tvm_ffi",), "llguidance": ()}


class Start(msgspec.Struct):
    """The first frame: the vocabulary."""

    vocabulary: bytes


class Answer(msgspec.Struct):
    """The result for a grammar: compiled, or an error message and the field of the request that it is about."""

    compiled: bytes | None = None
    error: str | None = None
    field: str | None = None


def backend_class(name: str, *, lightly: bool = False) -> type[Backend]:
    """The class of a back end, `lightly` without torch. Raises ImportError where its library is not installed."""
    module, attribute = BACKENDS[name]
    found = import_lightly(module, first=WITHOUT_TORCH[name]) if lightly else import_module(module)
    return getattr(found, attribute)


def main() -> None:
    live_and_die_with_parent()
    pipes = Pipes.of_worker()
    _silence_libraries()
    with contextlib.suppress(EOFError, OSError):
        backend_kind = backend_class(sys.argv[1], lightly=True)
        backend = backend_kind.from_vocabulary(pipes.receive(Start).vocabulary)
        limit_memory(MAX_BYTES)
        limit_stack(MAX_STACK)
        pipes.send(Started())
        while True:
            pipes.send(_compile(backend, pipes.receive(Grammar)))


def _silence_libraries() -> None:
    """Leave standard error to Python: libraries write a line there for every odd character of a grammar."""
    sys.stderr = sys.stdout = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)


def _compile(backend: Backend, grammar: Grammar) -> Answer:
    try:
        return Answer(compiled=_compiled(backend, worked_out(grammar)))
    except GrammarError as error:
        return Answer(error=str(error), field=error.field)
    except MemoryError:
        return Answer(error=f"it takes more than {MAX_BYTES >> 20} MiB to compile")
    except Exception:  # of a library, about this grammar alone
        traceback.print_exc()
        return Answer(error="the compiler of grammars failed on it; the server's log says why")


def _compiled(backend: Backend, grammar: Grammar) -> bytes:
    """Compile a grammar; a lenient one first by the back end's own lenient mode, if it has one."""
    if backend.knows_lenient and LENIENT in grammar.text:
        with contextlib.suppress(GrammarError):
            check(grammar)
            return backend.compile(grammar)
    check(grammar := as_told(grammar))
    return backend.compile(grammar)


if __name__ == "__main__":
    main()
