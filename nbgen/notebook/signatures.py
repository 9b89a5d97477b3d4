"""Signatures of helpers with every option by name, so that Tab completes them and help lists them.

Knows which options there are, and nothing of their values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.notebook.options import LINES, explained
from nbgen.notebook.short_traceback import shortened
from nbgen.sampling_params import SamplingParams, no_option

F = TypeVar("F", bound=Callable[..., Any])

#: Options besides the sampling options of `nbgen.stream`, and of helpers that pass their options on to it.
STREAMED = ("adapter", "images", "audio", "videos", "tools", "tool_choice", "template_options", "logit_processor")
#: Other libraries' names for our options, where similar spelling would not find the option that is meant.
ELSEWHERE = {"stream": "nbgen.stream", "messages": "prompt", "instructions": "system", "response_format": "schema"}
ELSEWHERE |= {"functions": "tools", "max_length": "max_new_tokens", "stop_sequences": "stop", "temp": "temperature"}
#: An unknown option that is let through here: the check of the options refuses it with a message of its own.
EXPLAINED = "model"


def takes_sampling(*more: str, new_tokens: int | None = None) -> Callable[[F], F]:
    """A decorator: `**options` takes only the sampling options and `more`; the helper's signature and help list them.

    `new_tokens` is the default of max_new_tokens; None: as many as the context holds.
    """

    def sign(helper: F) -> F:
        signature = inspect.signature(helper)
        own = [given for given in signature.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in more]
        names = {given.name for given in own}
        added = [given for given in [*named, *_sampling(new_tokens)] if given.name not in names]
        helper.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        listed = explained(given.name for given in (*own, *added) if given.name in LINES)
        helper.__doc__ = "\n\n".join(filter(None, [inspect.getdoc(helper), listed]))
        return _refusing(helper, [given.name for given in (*own, *added) if given.name != "self"])

    return sign


def _refusing(helper: F, known: Sequence[str]) -> F:
    """The helper, refusing options other than the known ones."""

    @functools.wraps(helper)
    def call(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        for name in options:
            if name not in known and name != EXPLAINED:
                raise shortened(_refusal(name, known))
        return helper(*args, **options)

    return cast(F, call)


def _refusal(name: str, known: Sequence[str]) -> InvalidRequest:
    if name in STREAMED:
        return InvalidRequest(f"there is no option {name!r} here; nbgen.generate has it", field=name)
    meant = ELSEWHERE.get(name)
    if meant in (*known, "nbgen.stream"):
        return InvalidRequest(f"there is no option {name!r}; did you mean {meant!r}?", field=name)
    return no_option(name, known)


def _sampling(new_tokens: int | None) -> list[inspect.Parameter]:
    return [_parameter(field, new_tokens) for field in msgspec.structs.fields(SamplingParams)]


def _parameter(field: msgspec.structs.FieldInfo, new_tokens: int | None) -> inspect.Parameter:
    """The parameter for an option, with a default that people can read in place of `UNSET`."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    type, default = (int | None, new_tokens) if default is msgspec.UNSET else (field.type, default)
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type)
