"""Arguments that are written between tags, as text: converts each to the type that its function's schema says.

A schema need not be valid here: an argument that it does not describe stays text. Knows no templates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.grammar_limits import resolve
from nbgen.engine.json_types import listed, types_of_value, values_of
from nbgen.engine.written_calls import read_value

#: A key: whether an argument has a fixed value or form. Then white space, which grammars allow around it, is dropped.
SINGLE = "single"
OF_SINGLE = {"enum", "const", "pattern", "format"}
#: A key: the texts that its schema lists, which may have white space of their own.
LISTED = "listed"


def typed(function: dict[str, Any]) -> dict[str, Any]:
    """The function, reduced to what `read` and transformers' parser need of it."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    named = properties.items() if isinstance(properties, dict) else ()
    told = {key: _told(list(_reached(schema, parameters))) for key, schema in named}
    return {"function": {"name": function["name"], "parameters": {"properties": told}}}


def read(properties: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Convert arguments in place: lists and objects in Python's syntax, also if no type is told, and single values."""
    for key, text in arguments.items():
        told = properties.get(key)
        if not isinstance(text, str) or told is None:
            continue
        if told[SINGLE]:
            arguments[key] = _single(text, told[LISTED])
        elif not told["type"] or {"array", "object"}.intersection(told["type"]):
            with contextlib.suppress(ValueError):
                found = read_value(text)
                arguments[key] = found if isinstance(found, list | dict) else text


def _told(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    types = dict.fromkeys(str(name) for node in nodes for name in _types(node))
    texts = [value for node in nodes for value in values_of(node) or () if isinstance(value, str)]
    return {"type": [*types], SINGLE: any(OF_SINGLE.intersection(node) for node in nodes), LISTED: texts}


def _single(text: str, listed: list[str]) -> str:
    """The listed text that this is, or would be with other white space beside it; if there is none, without any."""
    bare = text.strip()
    alike = [each for each in listed if each.strip() == bare]
    return next((each for each in (text, bare) if each in alike), next(iter(alike), bare))


def _types(node: dict[str, Any]) -> Iterator[Any]:
    yield from listed(node.get("type", [types_of_value(value)[-1] for value in values_of(node) or ()]))
    if node.get("nullable"):
        yield "null"


def _reached(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
    """The schema, its branches, and the schemas in `root` that these refer to, each once."""
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
