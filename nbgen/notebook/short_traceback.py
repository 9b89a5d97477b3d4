"""Errors of the helpers as a notebook shows them: with the caller's own lines, without the frames of nbgen below them.

Knows exceptions and IPython's hook for showing them; nothing of what the helpers do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from IPython.core.getipython import get_ipython

from nbgen.errors import NbgenError

P = ParamSpec("P")
T = TypeVar("T")

#: Exceptions that a helper may raise without being broken.
EXPECTED = (NbgenError, KeyboardInterrupt)


def short_traceback(helper: Callable[P, T]) -> Callable[P, T]:
    """A decorator: tracebacks of errors meant for the user, and of Ctrl-C, end where the helper was called."""

    @functools.wraps(helper)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # hides this frame in pytest
        try:
            return helper(*args, **kwargs)
        except EXPECTED as error:
            raise shortened(error) from None
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # the call itself is wrong
                raise shortened(error) from None
            raise

    return call


def shortened(error: BaseException) -> BaseException:
    """The same error without its traceback, as if made here. A notebook leaves out the frames that are added next."""
    if not isinstance(error, NbgenError):
        error._render_traceback_ = functools.partial(_lines, error)  # type: ignore[attr-defined]
    return error.with_traceback(None)


def _lines(error: BaseException) -> list[str]:
    """The lines that IPython shows: only one where IPython itself has called nbgen, as for a magic."""
    caller = _leave(error.__traceback__)
    if caller.startswith("IPython."):
        return [f"{type(error).__name__}: {error}".removesuffix(": ")]
    shell: Any = get_ipython()
    return list(shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__))


# IPython calls this hook when it shows an error.
NbgenError._render_traceback_ = _lines  # type: ignore[attr-defined]


def _leave(frame: TracebackType | None) -> str:
    """Cut a traceback where it enters nbgen. Returns the name of the module that called nbgen."""
    caller = ""
    while frame is not None and frame.tb_next is not None:
        if _module(frame.tb_next).partition(".")[0] == "nbgen":
            frame.tb_next, caller = None, _module(frame)
        frame = frame.tb_next
    return caller


def _module(frame: TracebackType) -> str:
    return str(frame.tb_frame.f_globals.get("__name__", ""))
