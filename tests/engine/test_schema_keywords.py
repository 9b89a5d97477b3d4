"""Schemas whose keywords are of any types are refused with the keyword's name, or taken without it."""

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.engine.json_types import TYPES
from nbgen.engine.loose_schema import can_be_enforced, loosened
from nbgen.engine.schema_keywords import COUNTS, KINDS
from nbgen.engine.xgrammar_schema import enforceable
from tests.engine.test_xgrammar_schema import takes
from tests.soak import TIMES

NAMES = [*KINDS, "const", "default", "x", "not"]
TEXTS = ["a", "b", "string", "object", "array", "integer", "uri", "date", "(", "[", "^a$", "\ud800"]
REFERENCES = ["#", "#/", "#/$defs/a", "#/$defs/b", "#/x", "#/x/a", "#/properties/a", "#a", "a.json"]
NUMBERS = [0, -1, 1, 5, 10**400, 3.0, 1e308, float("inf"), float("nan")]
LEAVES = st.sampled_from([None, True, False, *NUMBERS, *TEXTS, *REFERENCES])
#: Anything, with the names of keywords wherever there are names.
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=6,
)


def made_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas whose keywords are mostly what they may be."""
    many, named = st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "x"]), inner, max_size=3)
    fitting = {
        **dict.fromkeys(KINDS, inner),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), many),
        **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "x"), named),
        **dict.fromkeys(COUNTS, st.integers(0, 9)),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.sampled_from(NUMBERS)),
        "type": st.sampled_from([*TYPES]) | st.lists(st.sampled_from([*TYPES]), max_size=2),
        "enum": st.lists(LEAVES, max_size=3),
        "required": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "$ref": st.sampled_from(REFERENCES),
    }
    pairs = st.sampled_from(NAMES).flatmap(
        lambda name: st.tuples(st.just(name), st.one_of(*[fitting.get(name, VALUES)] * 9, VALUES))
    )
    return st.lists(pairs, max_size=5).map(dict)


SCHEMAS = st.recursive(st.just({}), made_of, max_leaves=8)


@given(schema=SCHEMAS)
@settings(max_examples=150 * TIMES)
def test_any_schema_can_be_enforced_or_is_refused(schema: dict[str, Any]) -> None:
    for part in (schema, {"oneOf": [schema, {"type": "string"}]}, {"allOf": [schema, {"required": ["a"]}]}):
        with suppress(GrammarError):
            check(Grammar("json_schema", json.dumps(part)))
        with suppress(GrammarError):
            enforceable(part)
        can_be_enforced(loosened(part))


#: A keyword of a wrong type; of a property, what is left of it may be this and not that.
WRONG: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "type": ({"type": "any", "enum": [1, 2]}, 1, 3),
    "$ref": ({"$ref": 5, "type": "integer"}, 1, "a"),
    "format": ({"type": "string", "format": ["x"]}, "a", 1),
    "pattern": ({"type": "string", "pattern": 5}, "a", 1),
    "minLength": ({"type": "string", "minLength": "3"}, "a", 1),
    "maxItems": ({"type": "array", "maxItems": -1}, [1, 2], 1),
    "required": ({"type": "object", "required": [["a"]]}, {"b": 1}, 1),
    "minimum": ({"type": "integer", "minimum": "3", "maximum": 5}, 2, 6),
    "enum": ({"type": "string", "enum": "a"}, "b", 1),
    "anyOf": ({"type": "integer", "anyOf": [5]}, 1, "a"),
    "items": ({"type": "array", "items": 5}, [1, "a"], 1),
    "properties": ({"type": "object", "properties": [], "additionalProperties": False}, {"a": 1}, 1),
    "patternProperties": ({"type": "object", "patternProperties": 1, "additionalProperties": False}, {"a": 1}, 1),
    "prefixItems": ({"type": "array", "prefixItems": 1, "items": False}, [1], 1),
    "additionalProperties": (
        {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": "no"},
        {"a": None},
        {"a": 1},
    ),
    "$defs": ({"type": "integer", "$defs": [1]}, 1, "a"),
}


@pytest.mark.parametrize("keyword", WRONG)
def test_a_keyword_of_a_wrong_type_is_named_or_left_out(keyword: str) -> None:
    part, good, bad = WRONG[keyword]
    schema = {"type": "object", "properties": {"p": part}, "required": ["p"]}
    for use in (enforceable, lambda schema: check(Grammar("json_schema", json.dumps(schema)))):
        with pytest.raises(GrammarError, match=f"^`{re.escape(keyword)}"):
            use(schema)
    assert takes(loosened(schema), {"p": good})
    assert not takes(loosened(schema), {"p": bad})


def test_a_reference_to_an_anchor_or_another_document_is_left_out() -> None:
    for reference in ("#node", "other.json#/a", "node"):
        schema = {"type": "object", "properties": {"p": {"$ref": reference}, "q": {"type": "integer"}}}
        assert not can_be_enforced(schema)
        assert takes(loosened(schema), {"p": [1], "q": 1})
        assert not takes(loosened(schema), {"q": "a"})
