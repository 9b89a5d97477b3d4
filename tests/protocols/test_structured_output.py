"""What the fields for structured output ask the engine for."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols.structured_output import openai_grammar
from tests.protocols.test_openai import chat, completion

SCHEMA = {"type": "object"}
LENIENT = {"x-guidance": {"lenient": True}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, ("json_schema", '{"type": "object"}')),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, ("json_schema", '{"a": 1}')),
        ({"response_format": {"type": "json_schema", "schema": {"a": 1}}}, ("json_schema", '{"a": 1}')),
        ({"guided_json": {"type": "object"}}, ("json_schema", '{"type":"object"}')),
        ({"guided_json": '{"type": "object"}'}, ("json_schema", '{"type": "object"}')),
        ({"guided_regex": "a|b"}, ("regex", "a|b")),
        ({"guided_choice": ["a.", "b"]}, ("regex", r"a\.|b")),
        ({"guided_grammar": 'root ::= "a"'}, ("ebnf", 'root ::= "a"')),
        ({"structured_outputs": {"json": {"type": "object"}}}, ("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"json_object": True}}, ("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"regex": "a", "json": None, "disable_fallback": False}}, ("regex", "a")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, ("regex", "a|b")),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, ("ebnf", 'root ::= "a"')),
        ({"structured_outputs": None, "guided_json": None, "guided_regex": "", "regex": None}, None),
        ({"guided_regex": None, "regex": "a", "grammar": ""}, ("regex", "a")),
        ({"guided_grammar": "a", "structured_outputs": {"grammar": "a"}}, ("ebnf", "a")),
        ({"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["a", "b"]}}, ("regex", "a|b")),
    ],
)
def test_vllms_structured_output_is_ours(fields: dict[str, Any], grammar: tuple[str, str] | None) -> None:
    assert chat(**fields).requests[0].params.grammar == grammar
    assert completion(**fields).requests[0].params.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": "a"}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"regex": "a", "guided_regex": "b"}, "guided_regex"),
        ({"guided_grammar": "a", "structured_outputs": {"grammar": "b"}}, "guided_grammar"),
        ({"guided_grammar": "a", "structured_outputs": {"regex": "a"}}, "guided_grammar"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
    ],
)
def test_what_structured_output_cannot_be_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as refusal:
        chat(**fields)
    assert (refusal.value.field or "").startswith(field)


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
