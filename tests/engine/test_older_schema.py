"""What older drafts of JSON schema ask is enforced as well."""

import json
from typing import Any

import jsonschema
import pytest

from nbgen.engine.older_schema import modern
from tests.engine.test_xgrammar_schema import takes

INTEGER = {"type": "integer"}
#: A schema of draft 4, values that it takes, values that it does not.
ENFORCED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a flag beside a bound": ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, [6], [5]),
    "a flag that is not set": ({"type": "integer", "maximum": 5, "exclusiveMaximum": False}, [5], [6]),
    "a flag elsewhere": ({"$ref": "#/x", "x": {"minimum": 5, "exclusiveMinimum": True, "type": "integer"}}, [6], [5]),
    "a flag in a part": ({"allOf": [INTEGER, {"maximum": 5, "exclusiveMaximum": True}]}, [4], [5]),
    "places": (
        {"type": "array", "items": [INTEGER, {"type": "string"}], "additionalItems": {"type": "null"}, "minItems": 2},
        [[1, "x"], [1, "x", None]],
        [["x", 1], [1, "x", 2]],
    ),
    "no other places": (
        {"type": "array", "items": [INTEGER], "additionalItems": False, "minItems": 1},
        [[1]],
        [["x"], [1, 2]],
    ),
    "inside of others": (
        {"type": "object", "properties": {"a": {"type": "array", "items": [INTEGER]}}, "required": ["a"]},
        [{"a": [1]}],
        [{"a": ["x"]}],
    ),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_what_a_schema_of_draft_4_asks_is_enforced(name: str) -> None:
    schema, good, bad = ENFORCED[name]
    validator = jsonschema.Draft4Validator(schema)
    for value in good:
        assert validator.is_valid(value)
        assert takes(schema, value), value
    for value in bad:
        assert not validator.is_valid(value)
        assert not takes(schema, value), value


def test_keywords_that_are_null_say_nothing() -> None:
    schema = {"type": "object", "properties": {"a": {"const": None, "enum": None}}, "required": None, "default": None}
    assert modern(schema) == {"type": "object", "properties": {"a": {"const": None}}, "default": None}
    assert takes({**schema, "required": ["a"]}, json.loads('{"a": null}'))
