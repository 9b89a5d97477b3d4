"""A user's `schema=`, as a JSON schema for the request and as a type into which the answer is read.

Takes a JSON schema (a dict), a dataclass, a msgspec Struct, a TypedDict or any other type that msgspec knows, and
pydantic's models, types with these in them, and TypeAdapters. Knows nothing of how the answer is made to follow it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from inspect import isroutine
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from nbgen.errors import InvalidAnswer, InvalidRequest
from nbgen.notebook.request import builtin
from nbgen.notebook.table import html_table
from nbgen.notebook.type_spelling import BASE64, spell_out
from nbgen.sampling_params import SPACED, STRING_FORMATS

#: How a Decimal is written: msgspec's schema only says format "decimal".
DECIMAL = r"^-?[0-9]+(\.[0-9]+)?$"
#: A JSON schema that constrains anything has at least one of these keys.
KEYWORDS = {"$ref", "type", "enum", "const", "not", "if", "allOf", "anyOf", "oneOf", "pattern", "format", "multipleOf"}
KEYWORDS |= {"properties", "patternProperties", "additionalProperties", "propertyNames", "required", "uniqueItems"}
KEYWORDS |= {"items", "prefixItems", "contains", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KEYWORDS |= {f"{end}{what}" for end in ("min", "max") for what in ("Properties", "Items", "Length")}
#: Patterns for the formats that no grammar knows by name.
SPELT = {"decimal": DECIMAL, "base64": BASE64}


class Schema:
    """`json` is the schema as the server takes it; `parse` reads an answer into a typed value."""

    def __init__(self, kind: Any) -> None:
        try:
            self.kind, schema = described(kind)
        except TypeError as error:
            raise InvalidRequest(
                f"schema must be a JSON schema as a dict, a dataclass, a msgspec Struct or a pydantic model: {error}",
                field="schema",
            ) from None
        # Small models get lost if they may choose white space freely.
        self.json = json.dumps({**SPACED, **schema})

    def parse(self, text: str) -> Any:
        """The value that `text` spells. Raises InvalidAnswer if it is not one of this schema."""
        try:
            return read_as(text, self.kind)
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
            raise InvalidAnswer(f"the answer does not fit the schema: {error}") from None


class Record(dict[str, Any]):
    """The object in an answer whose schema was given as a dict: a dict that shows itself as a table."""

    def _repr_html_(self) -> str:
        return html_table(self)


def described(kind: Any) -> tuple[Any, dict[str, Any]]:
    """The type that reads values of this kind, and their JSON schema. Raises TypeError if `kind` is no type."""
    if isinstance(kind, Mapping):
        return kind, _json(kind)
    of_model = isinstance(kind, msgspec.Struct) or hasattr(type(kind), "model_json_schema")
    if of_model or (is_dataclass(kind) and not isinstance(kind, type)):
        raise TypeError(f"got an object of {type(kind).__name__}; give the class itself")
    if hasattr(kind, "model_json_schema"):
        return kind, _asked(_told(kind.model_json_schema))
    try:
        schema = msgspec.json.schema(kind)
        spell_out(schema, kind)
        if _is_for_pydantic(kind, set()):
            raise TypeError("pydantic's limits and words say nothing to a type of msgspec's: there, write msgspec.Meta")
        return kind, _asked(schema)
    except TypeError as error:
        if adapted := _adapted(kind):
            return adapted, _asked(_told(adapted.json_schema))
        raise TypeError(str(error).splitlines()[-1]) from None  # the lines before are for programs that call msgspec
    except NameError as error:
        raise TypeError(f"{error} outside of functions, where a type in quotes is looked for") from None


def read_as(text: str, kind: Any, strict: bool = True) -> Any:
    """The value of this kind in a JSON text. Unless `strict`, numbers may be in quotes. Raises ValueError.

    pydantic's models decide themselves how strict they are.
    """
    if isinstance(kind, Mapping):
        value = json.loads(text)
        return Record(value) if isinstance(value, dict) else value
    for name in ("model_validate_json", "validate_json"):  # a model's, an adapter's
        if read := getattr(kind, name, None):
            return read(text)
    return msgspec.json.decode(text, type=kind, strict=strict)


def _json(given: Mapping[Any, Any]) -> dict[str, Any]:
    """The dict as a JSON schema, with numpy's numbers as Python's. Raises TypeError if it is none."""
    try:
        schema = dict(json.loads(json.dumps(builtin(given))))
        if schema and KEYWORDS.isdisjoint(schema):
            raise ValueError("none of its names says what a value is, as type does")
        return schema
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"this dict is none ({error}); names with Python types are a dataclass, or "
            'typing.TypedDict("Answer", {"name": str})'
        ) from None


def _adapted(kind: Any) -> Any:
    """The TypeAdapter of a type that only pydantic can read, such as a union of dataclasses; None for others."""
    if isinstance(kind, str) or isroutine(kind):
        return None
    try:
        import pydantic
    except ImportError:
        return None
    try:
        return kind if isinstance(kind, pydantic.TypeAdapter) else pydantic.TypeAdapter(kind)
    except (pydantic.errors.PydanticSchemaGenerationError, NameError):
        return None
    except pydantic.errors.PydanticUserError as error:
        raise TypeError(str(error).splitlines()[0]) from None


def _is_for_pydantic(kind: Any, seen: set[Any]) -> bool:
    """Whether a type is pydantic's, or has an annotation for pydantic in it, such as `Annotated[int, Field(ge=0)]`."""
    said = {type(each).__module__.partition(".")[0] for each in getattr(kind, "__metadata__", ())}
    if hasattr(kind, "__pydantic_core_schema__") or not said.isdisjoint(("pydantic", "annotated_types")):
        return True
    of = get_origin(kind) or kind
    inner = [*get_args(kind)]
    if isinstance(of, type) and not issubclass(of, Enum) and of not in seen:
        seen.add(of)
        inner += get_type_hints(of, include_extras=True).values()
    return any(_is_for_pydantic(each, seen) for each in inner)


def _told(schema: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The schema that pydantic makes of a type. Raises TypeError if it cannot make one."""
    try:
        return schema()
    except (sys.modules["pydantic"].PydanticUserError, ValueError) as error:  # ValueError: values that JSON cannot hold
        raise TypeError(str(error).splitlines()[0]) from None


def _asked(schema: dict[str, Any]) -> dict[str, Any]:
    """A type's schema as grammar compilers take it: its root is no `$ref`, and it has only what they can enforce."""
    if reference := schema.get("$ref"):
        parts = schema["$defs"]
        root = parts[reference.removeprefix("#/$defs/")]
        if json.dumps(reference) not in json.dumps(parts):  # else the type refers to itself
            parts = {name: part for name, part in parts.items() if part is not root}
        schema = {**root, "$defs": parts} if parts else root
    return dict(_held(schema))


def _held(node: Any) -> Any:
    """The schema without the constraints that no grammar enforces. Reading the answer into the type checks them."""
    if isinstance(node, list):
        return [_held(item) for item in node]
    if not isinstance(node, dict):
        return node
    form = node.get("format")
    unheld = [name for name in ("uniqueItems", "multipleOf") if isinstance(node.get(name), bool | int | float)]
    if isinstance(form, str) and form in SPELT:
        node = {**node, "pattern": SPELT[form]}
    spelt = isinstance(node.get("pattern"), str)
    known = isinstance(form, str) and form in STRING_FORMATS
    unheld += ["format"] if isinstance(form, str) and (spelt or not known) else []
    unheld += [name for name in ("minLength", "maxLength") if isinstance(node.get(name), int) and (spelt or known)]
    return {name: _held(value) for name, value in node.items() if name not in unheld}
