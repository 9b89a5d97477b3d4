"""Signatures of helpers with every option by its name, so that Tab finds them and help lists them.

Knows which options there are; checks none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from nbgen.sampling_params import DEFAULT_NEW_TOKENS, SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

#: What `nbgen.stream` takes beside the sampling options, and whoever hands its options on to it.
STREAMED = ("adapter", "images", "audio", "videos", "tools", "tool_choice", "template_options", "logit_processor")


def takes_sampling(*more: str) -> Callable[[F], F]:
    """A decorator: `**options` stands for the sampling options and these."""

    def sign(helper: F) -> F:
        signature = inspect.signature(helper)
        own = [given for given in signature.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD]
        named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in more]
        names = {given.name for given in own}
        added = [given for given in [*named, *_sampling()] if given.name not in names]
        helper.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return helper

    return sign


def _sampling() -> list[inspect.Parameter]:
    return [_parameter(field) for field in msgspec.structs.fields(SamplingParams)]


def _parameter(field: msgspec.structs.FieldInfo) -> inspect.Parameter:
    """As it is read: without what stands for an option that was left out."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    type, default = (int | None, DEFAULT_NEW_TOKENS) if default is msgspec.UNSET else (field.type, default)
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type)
