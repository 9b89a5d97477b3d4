"""The types of JSON values and schemas, and the bounds of numbers, as JSON schema has them. Plain Python."""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor, inf, isfinite
from typing import Any

#: What each type's values are: an integer is a number as well.
TYPES = {name: {name} for name in ("string", "boolean", "null", "array", "object", "integer")} | {
    "number": {"integer", "fraction"}
}


def listed(types: Any) -> list[Any]:
    """One type or several as a list."""
    return types if isinstance(types, list) else [types]


def types_of_value(value: Any) -> tuple[str, ...]:
    """The names of a JSON value's types."""
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return ("number", "integer") if isinstance(value, int) or value.is_integer() else ("number",)
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object", type(None): "null"}
    return (kinds[type(value)],)


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """The types of what matches a schema, with integers and fractions told apart."""
    if (values := values_of(schema)) is not None:
        return {types_of_value(value)[-1].replace("number", "fraction") for value in values}
    names = listed(schema["type"]) if "type" in schema else TYPES
    return set().union(*(TYPES.get(name, set()) for name in names if isinstance(name, str)))


#: The bounds of a number, and which way each is rounded to the next whole step.
BOUNDS = {"minimum": ceil, "exclusiveMinimum": floor, "maximum": floor, "exclusiveMaximum": ceil}


def apart(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether no number is within the bounds of both schemas."""
    low = max(_given(first, second, minimum=0, exclusiveMinimum=1), default=(-inf, 0))
    high = min(_given(first, second, maximum=0, exclusiveMaximum=-1), default=(inf, 0))
    return low[0] > high[0] or (low[0] == high[0] and low[1] > high[1])


def steps_within(schema: Mapping[str, Any], step: Fraction) -> tuple[list[int], list[int]]:
    """The least and the greatest number of steps within the bounds, as lists; a list is empty without such a bound."""
    given = {name: schema[name] for name in BOUNDS if isinstance(schema.get(name), int | float)}
    ends = {
        name: BOUNDS[name]((Fraction(str(value)) if isinstance(value, float) else value) / step)
        for name, value in given.items()
        if not isinstance(value, float) or isfinite(value)
    }
    low = [ends[name] + more for name, more in (("minimum", 0), ("exclusiveMinimum", 1)) if name in ends]
    return low, [ends[name] - less for name, less in (("maximum", 0), ("exclusiveMaximum", 1)) if name in ends]


def with_whole_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an integer with its bounds as integers; any other schema unchanged."""
    if "integer" not in listed(schema.get("type")) or "number" in listed(schema.get("type")):
        return schema
    found = {name: schema[name] for name in BOUNDS if isinstance(schema.get(name), float) and isfinite(schema[name])}
    return schema | {name: BOUNDS[name](value) for name, value in found.items()}


def _given(*schemas: Mapping[str, Any], **names: int) -> list[tuple[float, int]]:
    return [
        (each[name], order)
        for each in schemas
        for name, order in names.items()
        if isinstance(each.get(name), int | float)
    ]


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that a schema lists; None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None
