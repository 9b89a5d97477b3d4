"""What a person gives as `schema=`, as a JSON schema to ask with and a type to read the answer into.

Takes a JSON schema (a dict), a dataclass, a msgspec Struct, a TypedDict or any other type that msgspec knows, and a
pydantic model. Knows nothing of how the answer is made to follow it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from nbgen.errors import InvalidAnswer, InvalidRequest
from nbgen.notebook.table import html_table


class Schema:
    """`json` is the schema as the server takes it; `parse` makes the typed value of an answer."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.json = json.dumps(_json_schema(kind))

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises InvalidAnswer if it is not one of this schema."""
        try:
            return _read(text, self.kind)
        except ValueError as error:
            raise InvalidAnswer(f"the answer does not fit the schema: {error}") from None


class Record(dict[str, Any]):
    """An object of a schema that was given as a dict: a dict that shows itself as a table."""

    def _repr_html_(self) -> str:
        return html_table(self)


def _json_schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, Mapping):
        return dict(kind)
    if hasattr(kind, "model_json_schema"):
        return kind.model_json_schema()
    try:
        return _without_root_reference(msgspec.json.schema(kind))
    except TypeError as error:
        raise InvalidRequest(
            f"schema must be a JSON schema as a dict, a dataclass, a msgspec Struct or a pydantic model: {error}",
            field="schema",
        ) from None


def _without_root_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose root is written out, as some grammar compilers want it."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema


def _read(text: str, kind: Any) -> Any:
    if isinstance(kind, Mapping):
        value = json.loads(text)
        return Record(value) if isinstance(value, dict) else value
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json(text)
    return msgspec.json.decode(text, type=kind)
