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
    """The text in two braces, `source`, cannot be an expression."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{{{{{source:.500}}}}}: {reason}.")
        self.source = source


class UnknownName(WrongExpression):
    """An expression uses an unknown name."""


#: A template's texts and compiled expressions, in order.
Parts = list[str | CodeType]


def fill(template: str, names: Mapping[str, Any]) -> str:
    """The text with every `{{expression}}` replaced. Raises InvalidRequest naming the one that fails."""
    return filled(parsed(template), names)


def parsed(template: str) -> Parts:
    """A template's parts. Raises InvalidRequest naming the braces that hold no expression."""
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
    """Raise UnknownName for a bare name that is unknown, and for a column's label that Python reads as a literal."""
    for code in (part for part in parts if not isinstance(part, str)):
        _check_name(code, names)
        if not code.co_names and code.co_filename in names:
            raise UnknownName(code.co_filename, "is no name in Python")


def as_text(value: Any) -> str:
    """A value as a prompt shows it: a table of pandas, polars or pyarrow as Markdown, anything else by str()."""
    pandas, polars = (sys.modules.get(name) for name in ("pandas", "polars"))
    if any(library is not None and isinstance(value, library.Series) for library in (pandas, polars)):
        value = value.to_frame()
    if table := other_table(value):  # str() would leave most of it out
        return markdown_table(*table)
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return _table(value)
    return str(value)


def in_single_braces(text: str, names: Collection[str]) -> str | None:
    """One of the `names` that a text without double braces has in single ones, as in f-strings.

    Braces of code and of TeX are ignored.
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
    """Whether it is a table's missing value: None, NaN, or pandas' NA or NaT."""
    pandas = sys.modules.get("pandas")
    if value is None or pandas is None:
        return value is None
    return bool(pandas.api.types.is_scalar(value) and pandas.isna(value))


def _expression(text: str) -> tuple[CodeType | None, str]:
    """The shortest expression that ends at a `}}`, and the text after it. A `{{` that never closes is text."""
    place = first = text.find("}}")
    while place >= 0:
        source = text[:place].strip()
        try:
            return compile(source, source, "eval"), text[place + 2 :]
        except (SyntaxError, ValueError, MemoryError, RecursionError):  # the last two: nested too deep
            place = text.find("}}", place + 1)
    if first >= 0:
        raise WrongExpression(text[:first].strip(), "is not a Python expression")
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
    if source.isidentifier() and set(code.co_names).difference(names):  # also builtins, such as id, input
        raise UnknownName(source, f"name {source!r} is not defined")


def _table(frame: Any) -> str:
    """Rows with their index, unless it is only a RangeIndex."""
    pandas = sys.modules["pandas"]
    if not isinstance(frame.index, pandas.RangeIndex):
        frame = with_index(frame)
    return markdown_table(frame.columns, frame.itertuples(index=False))
