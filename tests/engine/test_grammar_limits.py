"""What no compiler is given, and what is no reason to refuse."""

import json
import time
from contextlib import suppress

import pytest

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.sampling_params import MAX_GRAMMAR_BYTES as MOST


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED = {
    "keyword": {"type": "array", "contains": {"type": "null"}},
    "inside": {"properties": {"a": {"anyOf": [{"not": {"type": "null"}}]}}},
    "older keyword": {"type": "object", "dependencies": {"a": ["b"]}},
    "branches": {"if": {"type": "string"}, "then": {"minLength": 1}},
    "format": {"type": "string", "format": "credit-card"},
    "an empty address": {"type": "string", "format": "uri-reference", "minLength": 1},
    "combined": {"type": "string", "format": "date", "pattern": "a"},
    "count": {"type": "array", "minItems": 2**63},
    "elsewhere": {"$ref": "http://127.0.0.1/x.json"},
    "an anchor": {"items": {"$ref": "#node"}, "$defs": {"a": {"$anchor": "node"}}},
    "no schema": {"$ref": "#/x", "x": 5},
    "half a character": {"const": "\ud800"},
    "half a name": {"properties": {"\udfff": {}}},
    "nowhere": {"$ref": "#/$defs/missing"},
    "cycle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "depth": nested(70),
    "pattern": {"type": "string", "pattern": "(" * 70 + "a" + ")" * 70},
}
TAKEN = {
    "named like a keyword": {"properties": {"not": {"type": "string"}, "if": {"type": "null"}, "contains": {}}},
    "values": {"enum": [{"not": 1, "minItems": 10**9}], "default": {"$ref": "http://x"}},
    "recursive": {"type": "object", "properties": {"child": {"$ref": "#"}}},
    "definitions": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
    "lengths": {"type": "string", "minLength": 1, "maxLength": 10},
    "an address": {"type": "string", "format": "uri", "minLength": 1},
    "false": {"type": "array", "uniqueItems": False},
    "large numbers": {"anyOf": [{"enum": [10**400]}, {"const": -(10**400)}, {"type": "string"}]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_schemas(name: str) -> None:
    with pytest.raises(GrammarError):
        check(Grammar("json_schema", json.dumps(REFUSED[name])))
    tag = {"format": {"type": "json_schema", "json_schema": REFUSED[name]}}
    with pytest.raises(GrammarError):
        check(Grammar("structural_tag", json.dumps(tag)))


@pytest.mark.parametrize("name", TAKEN)
def test_taken_schemas(name: str) -> None:
    check(Grammar("json_schema", json.dumps(TAKEN[name])))


def test_what_a_schema_of_a_tag_names_is_no_part_of_it() -> None:
    named = {"properties": {"schema": {"$ref": "#/$defs/a"}, "json_schema": {"const": {"not": {}}}}, "$defs": {"a": {}}}
    for format in ({"type": "json_schema", "json_schema": named}, {"type": "any_text"}):
        check(Grammar("structural_tag", json.dumps({"format": format})))
    older = {"structures": [{"begin": "<", "schema": named, "end": ">"}], "triggers": ["<"]}
    check(Grammar("structural_tag", json.dumps(older)))
    older["structures"][0]["schema"] = REFUSED["keyword"]
    with pytest.raises(GrammarError):
        check(Grammar("structural_tag", json.dumps(older)))


def chain(length: int) -> dict[str, object]:
    links = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {}}}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kind, text) for kind in ("regex", "ebnf") for text in ("{" + " " * MOST, "[" * MOST, "[" * MOST + "\\")),
        *(("ebnf", text * (MOST // len(text))) for text in ('"\n', '"\\"', "#[", "\\")),
        ("json_schema", json.dumps({"pattern": "{" + " " * MOST})),
        ("json_schema", json.dumps(chain(1500))),
        ("json_schema", json.dumps({"anyOf": [{}] * (MOST // 4)})),
        ("structural_tag", json.dumps({"format": [{}] * (MOST // 4)})),
    ],
)
def test_a_check_takes_no_longer_than_there_is_text(kind: str, text: str) -> None:
    started = time.thread_time()
    with suppress(GrammarError):
        check(Grammar(kind, text))
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "(" * 70 + ")" * 70),
        ("regex", "a{1,20000}"),
        ("regex", "a{99999999999999999999}"),
        ("ebnf", "root ::= " + "(" * 70 + '"a"' + ")" * 70),
        ("ebnf", "\n".join(f'r{i} ::= "a"' for i in range(2_001))),
        ("structural_tag", "[]"),
        ("structural_tag", '{"structures": [{"begin": 1, "end": "x"}], "triggers": ["a"]}'),
        ("structural_tag", '{"structures": [{"begin": "a", "end": "x"}]}'),
        ("structural_tag", '{"format": {"type": "regex", "pattern": "a{20000}"}}'),
        ("structural_tag", "{"),
    ],
)
def test_refused_texts(kind: str, text: str) -> None:
    with pytest.raises(GrammarError):
        check(Grammar(kind, text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", r"\(" * 100),
        ("regex", r"[({]{3}" + "(a)(b)" * 100),
        ("ebnf", 'root ::= "' + "(" * 100 + '"'),
        ("ebnf", "root ::= [(] # " + "(" * 100),
        ("json_schema", "$$ANY$$"),
    ],
)
def test_taken_texts(kind: str, text: str) -> None:
    check(Grammar(kind, text))
