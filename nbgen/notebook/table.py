"""Values as HTML tables and Markdown tables, for people to read. Everything in them is escaped.

Knows dicts, lists and scalars, and typed objects of them; nothing of where the table is shown.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from nbgen.errors import writable

#: Classes of an element in which MathJax leaves dollar signs alone.
NO_MATHS = "tex2jax_ignore mathjax_ignore"
#: Most levels of tables in tables: Python's own limit differs between its versions.
MAX_NESTED = 100


def html_table(value: Any) -> str:
    """A value as nested tables: an object has a row for each field, a list of objects a row for each item."""
    try:
        shown = _html(plain(value), MAX_NESTED)
    except RecursionError:  # a model may have opened thousands of brackets
        shown = "(nested too deep to be shown)"
    return f'<div class="nbgen-value {NO_MATHS}">{shown}</div>'


def markdown_table(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """Rows below their columns' names."""
    names = list(columns)
    return "\n".join(_line(row) for row in (names, ["---"] * len(names), *rows))


def plain(value: Any) -> Any:
    """A typed value as dicts, lists and scalars."""
    return msgspec.to_builtins(value, enc_hook=_of_model)


def _of_model(value: Any) -> Any:
    """A pydantic model as plain values; any other object, such as a URL, as its text."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def _html(value: Any, levels: int) -> str:
    """Raises RecursionError where a value has more levels than that."""
    if not levels:
        raise RecursionError
    if isinstance(value, Mapping | Sequence) and not value and not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    if isinstance(value, Mapping):
        return _rows([_row("th", [key], levels) + _row("td", [item], levels) for key, item in value.items()])
    if not isinstance(value, Sequence) or isinstance(value, str):
        return html.escape("" if value is None else writable(str(value))).replace("\n", "<br>")
    if value and all(isinstance(item, Mapping) for item in value):
        columns = list(dict.fromkeys(key for item in value for key in item))
        items = [_row("td", [item.get(column) for column in columns], levels) for item in value]
        return _rows([_row("th", columns, levels), *items])
    return "<br>".join(_html(item, levels - 1) for item in value)


def _row(tag: str, cells: Iterable[Any], levels: int) -> str:
    style = "text-align: left; vertical-align: top"
    return "".join(f'<{tag} style="{style}">{_html(cell, levels - 1)}</{tag}>' for cell in cells)


def _rows(rows: Iterable[str]) -> str:
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
