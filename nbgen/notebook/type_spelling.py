"""Patterns for values of msgspec's types in JSON that its schemas leave open: dates, times, bytes, keys.

Without a pattern a model writes prose there, which msgspec cannot read. Knows msgspec's types and JSON schemas; nothing
of other sources of schemas.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from msgspec import inspect

from nbgen.date_patterns import CLOCK, DAY, FRACTION, OF_FORMATS, ZONE

#: The pattern for a time zone, by msgspec's `tz`: optional, required, or none.
_ZONE = {None: f"{ZONE}?", True: ZONE, False: ""}
_SECONDS = f"[0-9]{{1,6}}{FRACTION}S"
_MINUTES = f"[0-9]{{1,6}}M({_SECONDS})?"
_HOURS = f"([0-9]{{1,6}}H({_MINUTES}|{_SECONDS})?|{_MINUTES}|{_SECONDS})"
DURATION = f"^-?P([0-9]{{1,6}}D(T{_HOURS})?|T{_HOURS})$"
BASE64 = OF_FORMATS["base64"]
BYTES = (inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType)
#: Schemas for the keys of dictionaries, which are strings in JSON, by the keys' types.
KEYS = {
    inspect.IntType: {"pattern": r"^-?(0|[1-9][0-9]*)$"},
    inspect.FloatType: {"pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"},
    inspect.UUIDType: {"format": "uuid"},
}


def spell_out(schema: dict[str, Any], kind: Any) -> None:
    """Add to the schema that msgspec has made for a type the patterns that it leaves open."""
    _spell(schema, inspect.type_info(kind), schema.get("$defs", {}), set())


def _spell(node: Any, kind: Any, defs: Mapping[str, Any], seen: set[int]) -> None:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if not isinstance(node, dict):
        return
    node = defs.get(node.get("$ref", "").removeprefix("#/$defs/"), node)
    if id(node) in seen:
        return
    seen.add(id(node))
    if pattern := _pattern(kind):
        node.pop("format", None)
        node["pattern"] = pattern
    if isinstance(kind, inspect.DictType) and (keys := _keys(kind.key_type)):
        node["propertyNames"] = keys
    for inner, of in _inside(node, kind):
        _spell(inner, of, defs, seen)


def _inside(node: Mapping[str, Any], kind: Any) -> list[tuple[Any, Any]]:
    """The schemas nested directly in a schema, each with its type."""
    if isinstance(kind, inspect.DictType):
        return [(node.get("additionalProperties"), kind.value_type)]
    if isinstance(kind, inspect.UnionType):
        return _options(node, kind)
    if isinstance(kind, inspect.TupleType):
        return list(zip(node.get("prefixItems", ()), kind.item_types, strict=False))
    if hasattr(kind, "fields"):
        return [(node.get("properties", {}).get(field.encode_name), field.type) for field in kind.fields]
    return [(node.get("items"), kind.item_type)] if hasattr(kind, "item_type") else []


def _pattern(kind: Any) -> str | None:
    """The pattern of the texts that msgspec reads as this type; None if msgspec's schema is enough."""
    if isinstance(kind, inspect.DateTimeType):
        return f"^{DAY}T{CLOCK}{_ZONE[kind.tz]}$"
    if isinstance(kind, inspect.DateType):
        return f"^{DAY}$"
    if isinstance(kind, inspect.TimeType):
        return f"^{CLOCK}{_ZONE[kind.tz]}$"
    if isinstance(kind, inspect.TimeDeltaType):
        return DURATION
    return BASE64 if isinstance(kind, BYTES) else None


def _keys(kind: Any) -> dict[str, Any] | None:
    """The schema of a dictionary's keys, where it is known."""
    if isinstance(kind, inspect.LiteralType):
        return {"enum": [str(value) for value in kind.values]}
    if isinstance(kind, inspect.EnumType):
        return {"enum": [str(member.value) for member in kind.cls]}
    pattern = _pattern(kind)
    return {"pattern": pattern} if pattern else KEYS.get(type(kind))


def _options(node: Mapping[str, Any], union: Any) -> list[tuple[Any, Any]]:
    """The schemas of a union, each with its type. msgspec writes Structs after other types, several of them as a union
    of their own, and null last.
    """
    written = [each["anyOf"] if "discriminator" in each else [each] for each in node.get("anyOf", ())]
    schemas = sorted(itertools.chain.from_iterable(written), key=lambda each: each.get("type") == "null")
    return list(zip(schemas, sorted(union.types, key=_place), strict=False))


def _place(kind: Any) -> int:
    """The rank by which msgspec orders the types of a union."""
    if isinstance(kind, inspect.NoneType):
        return 2
    return int(isinstance(kind, inspect.StructType) and not kind.array_like)
