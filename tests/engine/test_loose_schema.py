"""Schemas that answers are to follow as far as they can be held to them."""

import json
from typing import Any

import pytest

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.engine.loose_schema import as_told
from nbgen.sampling_params import GUIDANCE, LENIENT, SPACED
from tests.engine.test_xgrammar_schema import takes

SETS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TOLD = {GUIDANCE: {LENIENT: True}}


def told(schema: Any) -> Any:
    return json.loads(as_told(Grammar("json_schema", json.dumps(schema))).text)


def test_a_lenient_schema_is_followed_without_what_is_not_held_to() -> None:
    assert told({**SETS, **TOLD}) == {"type": "array", "items": {"type": "integer"}}
    assert takes(told({**SETS, **TOLD}), [1, 1])
    assert not takes(told({**SETS, **TOLD}), ["a"])
    assert told(SETS) == SETS
    assert told({"type": "string", "minLength": 2, **TOLD}) == {"type": "string", "minLength": 2}


def test_white_space_is_as_the_same_schema_says() -> None:
    said = {GUIDANCE: {**SPACED[GUIDANCE], LENIENT: True}}
    assert told({**SETS, **said}) == {"type": "array", "items": {"type": "integer"}, **SPACED}


def test_so_is_a_lenient_schema_within_a_tag() -> None:
    parts = [{"type": "json_schema", "json_schema": schema} for schema in ({**SETS, **TOLD}, SETS)]
    tag = {"type": "structural_tag", "format": {"type": "or", "elements": parts}}
    found = json.loads(as_told(Grammar("structural_tag", json.dumps(tag))).text)
    assert [part["json_schema"].get("uniqueItems") for part in found["format"]["elements"]] == [None, True]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nonsense"}, "`type` cannot be so"),
        ({"properties": {"a": {"items": 5}}}, "cannot be so"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "leads nowhere"),
    ],
)
def test_what_is_no_schema_is_refused_still(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        check(as_told(Grammar("json_schema", json.dumps({**schema, **TOLD}))))
