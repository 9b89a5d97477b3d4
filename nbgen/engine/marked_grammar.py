"""The grammar of arguments whose strings stand between marks, `{key:<|"|>text<|"|>}`: parts of a structural tag.

Knows no calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nbgen.engine.argument_grammar import KNOWN, NAME, SHARED, members
from nbgen.engine.structural_tag import Format, one_of, optional, sequence, text

#: The name of this style of arguments, which the mark follows.
MARKED = "marked "
#: How deeply values may be nested, those that refer to others included.
MAX_DEPTH = 8
#: The most items of a list.
MAX_ITEMS = 256
_OF_STRINGS = ("pattern", "format", "minLength", "maxLength")
_OF_LISTS = ("prefixItems", "contains", "uniqueItems")
_PLAIN = ("integer", "number", "boolean", "null")


class MarkedArguments:
    """Makes parts from schemas; if `strict`, not from a schema that asks for more than the part enforces."""

    def __init__(self, mark: str, shared: Mapping[str, Any], *, strict: bool) -> None:
        self._mark = mark
        self._shared = shared
        self._strict = strict

    @classmethod
    def of(cls, parameters: dict[str, Any], style: str, *, strict: bool) -> Format | None:
        """The part for a function's parameters; None for parameters that cannot be written this way."""
        shared = {f"#/{key}/{name}": each for key in SHARED for name, each in parameters.get(key, {}).items()}
        return cls(style.removeprefix(MARKED), shared, strict=strict).value({"type": "object", **parameters}, 0)

    def value(self, schema: Any, depth: int) -> Format | None:
        """The part for any value of a schema; None for a schema that has no part."""
        if isinstance(schema, dict) and "$ref" in schema:
            schema = self._shared.get(schema["$ref"])
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return None
        if "const" in schema or "enum" in schema:
            return one_of(*(text(self._written(each)) for each in schema.get("enum", [schema.get("const")])))
        kind = schema.get("type")
        kinds = [{**schema, "type": each} for each in kind] if isinstance(kind, list) else None
        several = schema.get("anyOf") or schema.get("oneOf") or kinds
        if several:
            found = [self.value(each, depth + 1) for each in several]
            return None if None in found else one_of(*(each for each in found if each is not None))
        make: Callable[[dict[str, Any], int], Format | None] | None = getattr(self, f"_{kind}", None)
        if kind in _PLAIN:
            return {"type": "json_schema", "json_schema": schema}
        return make(schema, depth + 1) if make is not None else None

    def _string(self, schema: dict[str, Any], _: int) -> Format | None:
        if self._strict and any(name in schema for name in _OF_STRINGS):
            return None
        return {"type": "tag", "begin": self._mark, "content": {"type": "any_text"}, "end": self._mark}

    def _array(self, schema: dict[str, Any], depth: int) -> Format | None:
        item = self.value(schema.get("items"), depth)
        if item is None or (self._strict and any(name in schema for name in _OF_LISTS)):
            return None
        least, most = schema.get("minItems") or 0, schema.get("maxItems")
        most = MAX_ITEMS if most is None else min(most, MAX_ITEMS)
        if most < least:
            return None
        if most == 0:
            return text("[]")
        # A count, because xgrammar refuses an endless repeat in a tag without an end, such as a call's.
        more = {"type": "repeat", "min": max(0, least - 1), "max": most - 1, "content": sequence(text(","), item)}
        items = sequence(item, more)
        return sequence(text("["), items if least else optional(items), text("]"))

    def _object(self, schema: dict[str, Any], depth: int) -> Format | None:
        properties, required = schema.get("properties") or {}, schema.get("required") or []
        names = all(map(NAME.fullmatch, properties))
        if not names or not KNOWN.union(SHARED).issuperset(schema) or not set(properties).issuperset(required):
            return None
        # A function without properties takes nothing; any other object without properties may have any.
        if not properties and schema.get("additionalProperties", depth > 1) is not False:
            return None
        values = {name: self.value(each, depth) for name, each in properties.items()}
        pairs = {name: sequence(text(f"{name}:"), each) for name, each in values.items() if each is not None}
        found = members(pairs, required, ",") if len(pairs) == len(values) else None
        return found and sequence(text("{"), found, text("}"))

    def _written(self, value: Any) -> str:
        return f"{self._mark}{value}{self._mark}" if isinstance(value, str) else json.dumps(value)
