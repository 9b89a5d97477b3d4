"""`{{expression}}` in a prompt, evaluated in the user's namespace. Single braces are text.

Knows how values look in a prompt; nothing of where the prompt goes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from inspect import isroutine
from types import CodeType
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook.data_frames import other_table
from nbgen.notebook.table import markdown_table


class WrongExpression(InvalidRequest):
    """What stands in two braces can be no expression: `source`."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{{{{{source:.500}}}}}: {reason}.")
        self.source = source


class UnknownName(WrongExpression):
    """An expression uses a name that is not there."""


#: A template's texts and expressions, in their order.
Parts = list[str | CodeType]


def fill(template: str, names: Mapping[str, Any]) -> str:
    """The text with every `{{expression}}` replaced. Raises InvalidRequest naming the one that fails."""
    return filled(parsed(template), names)


def parsed(template: str) -> Parts:
    """What a template is made of. Raises InvalidRequest naming what is no expression."""
    parts: Parts = []
    rest = template
    while True:
        before, opening, after = rest.partition("{{")
        parts.append(before)
        if not opening:
            return parts
        code, rest = _expression(after)
        parts.append(opening if code is None else code)


def filled(parts: Parts, names: Mapping[str, Any], whole: bool = False) -> str:
    """The text with every expression replaced; with `whole` none of them may be a missing value."""
    return "".join(part if isinstance(part, str) else _text(part, names, whole) for part in parts)


def check_names(parts: Parts, names: Mapping[str, Any]) -> None:
    """Raise UnknownName where a name alone is an expression and not there, or something else is that is called so."""
    for code in (part for part in parts if not isinstance(part, str)):
        _check_name(code, names)
        if not code.co_names and code.co_filename in names:
            raise UnknownName(code.co_filename, "is no name in Python")


def as_text(value: Any) -> str:
    """A value as a prompt shows it: a table of pandas, polars or pyarrow as Markdown, anything else as str() has it."""
    pandas, polars = (sys.modules.get(name) for name in ("pandas", "polars"))
    if any(library is not None and isinstance(value, library.Series) for library in (pandas, polars)):
        value = value.to_frame()
    if table := other_table(value):  # of which str() leaves most out
        return markdown_table(*table)
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _table(value)
    return str(value)


def in_single_braces(text: str, names: Collection[str]) -> str | None:
    """One of the names that a text without double braces has in single ones, as f-strings have them.

    The braces of code and of TeX are left out.
    """
    if "{{" in text or re.search("[fF][rR]?[\"']", text):
        return None
    return next((name for name in re.findall(r"(?<![\w^}$\\])\{([^\W\d]\w*)\}", text) if name in names), None)


def with_index(frame: Any) -> Any:
    """A DataFrame with its index as columns, under names that no other column has."""
    whole = frame.reset_index(allow_duplicates=True)
    names = list(whole.columns)
    for place in reversed(range(frame.index.nlevels)):
        while names[place] in names[place + 1 :]:
            names[place] = f"index_{names[place]}"
    return whole.set_axis(names, axis=1)


def missing(value: Any) -> bool:
    """Whether it is what a table has where there is no value: None, NaN, or a NA or NaT of pandas."""
    pandas = sys.modules.get("pandas")
    if value is None or pandas is None:
        return value is None
    return bool(pandas.api.types.is_scalar(value) and pandas.isna(value))


def _expression(text: str) -> tuple[CodeType | None, str]:
    """The shortest expression that ends at a `}}`, and what follows. A pair that never closes is text."""
    ends = [place for place in range(len(text)) if text.startswith("}}", place)]
    for place in ends:
        source = text[:place].strip()
        try:
            return compile(source, source, "eval"), text[place + 2 :]
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two, of what is nested too deep
            continue
    if ends:
        raise WrongExpression(text[: ends[0]].strip(), "is not a Python expression")
    return None, text


def _text(code: CodeType, names: Mapping[str, Any], whole: bool) -> str:
    source = code.co_filename
    _check_name(code, names)
    try:
        value = eval(code, dict(names))
        text = as_text(value)
    except NameError as error:
        raise UnknownName(source, str(error)) from None
    except Exception as error:  # The user's own code may raise anything.
        raise InvalidRequest(f"{{{{{source}}}}}: {type(error).__name__}: {error}.") from error
    if isroutine(value):
        raise InvalidRequest(f"{{{{{source}}}}}: it is a function, not what one returns.")
    if whole and missing(value):
        raise InvalidRequest(f"{source} is missing")
    return text


def _check_name(code: CodeType, names: Mapping[str, Any]) -> None:
    source = code.co_filename
    if source.isidentifier() and set(code.co_names).difference(names):  # also what Python itself calls so: id, input
        raise UnknownName(source, f"name {source!r} is not defined")


def _table(frame: Any) -> str:
    """Rows with their index, unless it only counts them."""
    pandas = sys.modules["pandas"]
    if not isinstance(frame.index, pandas.RangeIndex):
        frame = with_index(frame)
    return markdown_table(frame.columns, frame.itertuples(index=False))
