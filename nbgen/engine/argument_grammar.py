"""The grammar of a call's arguments in Python's syntax, `city="Oslo", days=3`: parts of a structural tag of xgrammar.

Values are JSON by their schemas, which is valid Python except `True`, `False` and `None`. Knows no calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from nbgen.engine.structural_tag import Format, one_of, optional, sequence, text

#: Our name for this style of arguments: xgrammar has none.
STYLE = "python"
#: Keys that a parameters schema may have: others would not be enforced.
KNOWN = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema"}
#: And keys for definitions that properties refer to.
SHARED = ("$defs", "definitions")
#: Names that a property may have, since it is written without quotes.
NAME = re.compile(r"[^\W\d][\w.$-]*")
#: Most parameters if all are optional: the grammar has a case for each that may be the first.
MAX_OPTIONAL = 16
_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


def python_arguments(parameters: dict[str, Any]) -> Format | None:
    """The required arguments, then any of the others; None for parameters that this syntax cannot express."""
    properties, required = parameters.get("properties") or {}, parameters.get("required") or []
    names = all(map(NAME.fullmatch, properties))
    if not names or not KNOWN.union(SHARED).issuperset(parameters) or not set(properties).issuperset(required):
        return None
    shared = {key: parameters[key] for key in SHARED if key in parameters}
    pairs = {name: sequence(text(f"{name}="), _value(each, shared)) for name, each in properties.items()}
    return members(pairs, required, ", ")


def members(pairs: Mapping[str, Format], required: Collection[str], joint: str) -> Format | None:
    """The required pairs, then any of the others; None if all are optional and there are too many."""
    must = [pair for name, pair in pairs.items() if name in required]
    may = [pair for name, pair in pairs.items() if name not in required]
    rest = [sequence(text(joint), pair) for pair in may]
    if must:
        return sequence(must[0], *(sequence(text(joint), pair) for pair in must[1:]), *map(optional, rest))
    if len(may) > MAX_OPTIONAL:
        return None
    firsts = [sequence(each, *map(optional, rest[i + 1 :])) for i, each in enumerate(may)]
    return optional(one_of(*firsts)) if firsts else text("")


def _value(schema: Any, shared: dict[str, Any]) -> Format:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, str) and kind in _WORDS and "enum" not in schema and "const" not in schema:
        return one_of(*map(text, _WORDS[kind]))
    return {"type": "json_schema", "json_schema": {**shared, **schema} if isinstance(schema, dict) else schema}
