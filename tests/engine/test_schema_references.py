"""References in schemas are held to together with all that stands beside them."""

from typing import Any

import pytest

from tests.engine.test_xgrammar_schema import A, B, check_enforced, check_refused

INTEGER = {"type": "integer"}

#: A schema, values that it takes, values that it does not. Among its definitions are these.
DEFS = {"A": A, "N": INTEGER, "M": {"$ref": "#/$defs/N", "minimum": 3}}
ENFORCED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "parts that refer": ({"allOf": [{"$ref": "#/$defs/A"}, B]}, [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    "a part beside": ({**B, "allOf": [{"$ref": "#/$defs/A"}]}, [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    "a part of one type": ({"allOf": [{"$ref": "#/$defs/N"}, {"maximum": 3}]}, [3], [4, "x"]),
    "what leads further": ({"$ref": "#/$defs/M", "maximum": 9}, [3, 9], [2, 10]),
    "parts that lead to parts": (
        {**B, "allOf": [{"$ref": "#/$defs/P"}], "$defs": {"P": {"allOf": [{"$ref": "#/$defs/A"}, {}]}}},
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}],
    ),
    "a tree": (
        {
            "$ref": "#/$defs/T",
            "$defs": {"T": {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"t": {"$ref": "#/$defs/T"}}}]}},
        },
        [{"a": 1}, {"a": 1, "t": {"a": 2}}],
        [{"a": 1, "t": {}}, {}],
    ),
    "names, patterns and others": (
        {**A, "patternProperties": {"^x-": {"type": "null"}}, "additionalProperties": {"type": "string"}},
        [{"a": 1}, {"a": 1, "x-b": None}],
        [{"a": 1, "x-b": "x"}, {"a": "x"}],
    ),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_what_a_reference_leads_to_is_enforced_with_what_is_beside_it(name: str) -> None:
    schema, good, bad = ENFORCED[name]
    check_enforced({**schema, "$defs": {**DEFS, **schema.get("$defs", {})}}, good, bad)


def test_parts_that_lead_back_to_themselves_are_refused() -> None:
    back = {"allOf": [{"$ref": "#/$defs/P"}, {"minimum": 1}]}
    check_refused({"$ref": "#/$defs/P", "$defs": {"P": back}}, "'#/$defs/P' leads back to itself")
