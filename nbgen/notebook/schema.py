"""What a person gives as `schema=`, as a JSON schema to ask with and a type to read the answer into.

Takes a JSON schema (a dict), a dataclass, a msgspec Struct, a TypedDict or any other type that msgspec knows, and
pydantic's models, types with these in them, and TypeAdapters. Knows nothing of how the answer is made to follow it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from inspect import isroutine
from typing import Any

import msgspec

from nbgen.errors import InvalidAnswer, InvalidRequest
from nbgen.notebook.table import html_table
from nbgen.sampling_params import STRING_FORMATS

#: How a Decimal is written, which msgspec calls a format.
DECIMAL = r"^-?[0-9]+(\.[0-9]+)?$"
#: The keys of dictionaries, which JSON has as texts, by their types.
KEYS = {
    msgspec.inspect.IntType: {"pattern": r"^-?(0|[1-9][0-9]*)$"},
    msgspec.inspect.FloatType: {"pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"},
    msgspec.inspect.DateType: {"format": "date"},
    msgspec.inspect.UUIDType: {"format": "uuid"},
}


class Schema:
    """`json` is the schema as the server takes it; `parse` makes the typed value of an answer."""

    def __init__(self, kind: Any) -> None:
        try:
            self.kind, schema = described(kind)
        except TypeError as error:
            raise InvalidRequest(
                f"schema must be a JSON schema as a dict, a dataclass, a msgspec Struct or a pydantic model: {error}",
                field="schema",
            ) from None
        self.json = json.dumps(schema)

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises InvalidAnswer if it is not one of this schema."""
        try:
            return read_as(text, self.kind)
        except ValueError as error:
            raise InvalidAnswer(f"the answer does not fit the schema: {error}") from None


class Record(dict[str, Any]):
    """An object of a schema that was given as a dict: a dict that shows itself as a table."""

    def _repr_html_(self) -> str:
        return html_table(self)


def described(kind: Any) -> tuple[Any, dict[str, Any]]:
    """What reads values of this kind, and their schema. Raises TypeError that says why it is no type."""
    if isinstance(kind, Mapping):
        return kind, dict(kind)
    if hasattr(kind, "model_json_schema"):
        return kind, _asked(kind.model_json_schema())
    try:
        schema = msgspec.json.schema(kind)
        _name_keys(schema, msgspec.inspect.type_info(kind), schema.get("$defs", {}), set())
        return kind, _asked(schema)
    except TypeError as error:
        if adapted := _adapted(kind):
            return adapted, _asked(adapted.json_schema())
        raise TypeError(str(error).splitlines()[-1]) from None  # what comes before is for programs that call msgspec


def read_as(text: str, kind: Any, strict: bool = True) -> Any:
    """The value of this kind that a JSON text spells. Unless `strict`, a number may stand in quotes. Raises ValueError.

    pydantic's models say themselves how strict they are.
    """
    if isinstance(kind, Mapping):
        value = json.loads(text)
        return Record(value) if isinstance(value, dict) else value
    for name in ("model_validate_json", "validate_json"):  # a model's, an adapter's
        if read := getattr(kind, name, None):
            return read(text)
    return msgspec.json.decode(text, type=kind, strict=strict)


def _name_keys(node: Any, kind: Any, defs: Mapping[str, Any], seen: set[int]) -> None:
    """Write the keys of dictionaries into their schemas, as far as msgspec leaves them open. `kind` is msgspec's."""
    if not isinstance(node, dict):
        return
    node = defs.get(node.get("$ref", "").removeprefix("#/$defs/"), node)
    if id(node) in seen:
        return
    seen.add(id(node))
    inside: list[tuple[Any, Any]] = []
    if isinstance(kind, msgspec.inspect.DictType) and node.get("type") == "object":
        if keys := _keys(kind.key_type):
            node["propertyNames"] = keys
        inside = [(node.get("additionalProperties"), kind.value_type)]
    elif isinstance(kind, msgspec.inspect.UnionType):
        inside = _options(node, kind)
    elif hasattr(kind, "fields"):
        inside = [(node.get("properties", {}).get(field.encode_name), field.type) for field in kind.fields]
    elif hasattr(kind, "item_type"):
        inside = [(node.get("items"), kind.item_type)]
    for inner, of in inside:
        _name_keys(inner, of, defs, seen)


def _keys(kind: Any) -> dict[str, Any] | None:
    """The schema of a dictionary's keys, where it is known."""
    if isinstance(kind, msgspec.inspect.LiteralType):
        return {"enum": [str(value) for value in kind.values]}
    if isinstance(kind, msgspec.inspect.EnumType):
        return {"enum": [str(member.value) for member in kind.cls]}
    return KEYS.get(type(kind))


def _options(node: Mapping[str, Any], union: Any) -> list[tuple[Any, Any]]:
    """The schemas of a union, each with its type: msgspec writes Structs behind other types, several as a union of
    their own, and null last.
    """
    written = [each["anyOf"] if "discriminator" in each else [each] for each in node.get("anyOf", ())]
    schemas = sorted(itertools.chain.from_iterable(written), key=lambda each: each.get("type") == "null")
    return list(zip(schemas, sorted(union.types, key=_place), strict=False))


def _place(kind: Any) -> int:
    """Where msgspec writes a type of a union."""
    if isinstance(kind, msgspec.inspect.NoneType):
        return 2
    return int(isinstance(kind, msgspec.inspect.StructType) and not kind.array_like)


def _adapted(kind: Any) -> Any:
    """A type that has pydantic's models in it, by pydantic's TypeAdapter; None for what is none."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or isinstance(kind, str) or isroutine(kind):
        return None
    try:
        adapter = kind if isinstance(kind, pydantic.TypeAdapter) else pydantic.TypeAdapter(kind)
        adapter.json_schema()
    except pydantic.PydanticUserError:
        return None
    return adapter


def _asked(schema: dict[str, Any]) -> dict[str, Any]:
    """A type's schema as grammar compilers take it: its root is written out, and nothing in it is beyond them."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return dict(_held({**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema))


def _held(node: Any) -> Any:
    """The schema without what no grammar holds answers to. Reading them into the type checks it all the same."""
    if isinstance(node, list):
        return [_held(item) for item in node]
    if not isinstance(node, dict):
        return node
    form = node.get("format")
    unheld = [name for name in ("uniqueItems",) if node.get(name) is True]
    unheld += ["format"] if isinstance(form, str) and form not in STRING_FORMATS else []
    pattern = {"pattern": DECIMAL} if form == "decimal" else {}
    return {name: _held(value) for name, value in node.items() if name not in unheld} | pattern
