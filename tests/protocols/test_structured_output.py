"""What the fields for structured output ask the engine for."""

import json
from typing import Any

import pytest

from nbgen.protocols.structured_output import openai_grammar

SCHEMA = {"type": "object"}
LENIENT = {"x-guidance": {"lenient": True}}


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        ({"schema": SCHEMA}, SCHEMA),
        ({"schema": SCHEMA, "strict": None}, SCHEMA),
        ({"schema": SCHEMA, "strict": True}, SCHEMA),
        ({"schema": SCHEMA, "strict": False}, {**SCHEMA, **LENIENT}),
        ({"schema": True, "strict": False}, True),
        ({"schema": {"x-guidance": 1}, "strict": False}, LENIENT),
        ({"schema": {"x-guidance": {"a": 1}}, "strict": False}, {"x-guidance": {"a": 1, "lenient": True}}),
    ],
)
def test_a_schema_that_is_not_strict_is_followed_as_far_as_can_be(wanted: dict[str, Any], asked: Any) -> None:
    for format in ({"json_schema": wanted}, wanted):
        found = openai_grammar({"response_format": {"type": "json_schema", **format}})
        assert json.loads(found["json_schema"]) == asked
