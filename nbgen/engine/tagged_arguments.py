"""Arguments that stand in tags, where all is text: what each of them is, by its function's schema.

A schema need not be valid here: what it does not tell of is text. Knows no templates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.grammar_limits import resolve
from nbgen.engine.json_types import listed, types_of_value, values_of
from nbgen.engine.written_calls import read_value

#: Whether white space beside an argument is none of it, as a grammar lets some stand there: it is a certain value.
SINGLE = "single"
OF_SINGLE = {"enum", "const", "pattern", "format"}


def typed(function: dict[str, Any]) -> dict[str, Any]:
    """The function with nothing but what `read` and transformers' parser read of it."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    named = properties.items() if isinstance(properties, dict) else ()
    told = {key: _told(list(_reached(schema, parameters))) for key, schema in named}
    return {"function": {"name": function["name"], "parameters": {"properties": told}}}


def read(properties: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Read, in their place, lists and objects as Python writes them, also where no type is told, and single values."""
    for key, text in arguments.items():
        told = properties.get(key)
        if not isinstance(text, str) or told is None:
            continue
        if told[SINGLE]:
            arguments[key] = text.strip()
        elif not told["type"] or {"array", "object"}.intersection(told["type"]):
            with contextlib.suppress(ValueError):
                found = read_value(text)
                arguments[key] = found if isinstance(found, list | dict) else text


def _told(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    types = dict.fromkeys(str(name) for node in nodes for name in _types(node))
    return {"type": [*types], SINGLE: any(OF_SINGLE.intersection(node) for node in nodes)}


def _types(node: dict[str, Any]) -> Iterator[Any]:
    yield from listed(node.get("type", [types_of_value(value)[-1] for value in values_of(node) or ()]))
    if node.get("nullable"):
        yield "null"


def _reached(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
    """The schema with its branches and what they refer to within `root`, each once."""
    left, seen = [schema], set[int]()
    while left:
        node = left.pop(0)
        if isinstance(node, dict) and id(node) not in seen:
            seen.add(id(node))
            yield node
            left += _next(node, root)


def _next(node: dict[str, Any], root: Any) -> Iterator[Any]:
    for branches in (node.get(name) for name in ("anyOf", "oneOf", "allOf")):
        yield from branches if isinstance(branches, list) else ()
    with contextlib.suppress(GrammarError):
        yield resolve(node.get("$ref", ""), root)
