"""What a schema asks is enforced, or the schema is refused: an answer that merely looks checked is worse."""

import json
from typing import Any

import jsonschema
import pytest
import xgrammar

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from nbgen.engine.xgrammar_schema import enforceable

BYTES = XGrammarBackend(xgrammar.TokenizerInfo([chr(i) for i in range(128)]), [])
A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
CLOSED = {"additionalProperties": False}
CAT, DOG = (
    {
        "type": "object",
        "properties": {"kind": {"const": kind, "default": kind}, "age": {"type": "integer"}},
        "required": ["kind"],
    }
    for kind in ("cat", "dog")
)
UNTAGGED = {"Cat": {**CAT, "required": []}, "Dog": {**DOG, "required": ["age"]}}
DEFS = {"A": A, "N": {"type": "integer"}}

#: A schema, values that it takes, values that it does not.
ENFORCED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "how many items": ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [1, "x"]], [[], [1, 2, 3]]),
    "how many properties": (
        {"type": "object", "minProperties": 1, "maxProperties": 1},
        [{"a": 1}],
        [{}, {"a": 1, "b": 2}],
    ),
    "a place that may be anything": ({"type": "array", "prefixItems": [True, {"type": "null"}]}, [[1, None]], [[1, 1]]),
    "a property that never is": ({"type": "object", "properties": {"a": False, "b": {}}}, [{"b": 1}, {}], [{"a": 1}]),
    "a reference into a list": (
        {
            "type": "object",
            "properties": {
                "p": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
                "q": {"$ref": "#/properties/p/oneOf/0"},
            },
        },
        [{"q": 1}, {"p": None}],
        [{"q": None}],
    ),
    "a reference as an address": (
        {"$ref": "#/definitions/A%3Cb%3E", "definitions": {"A<b>": {"type": "integer"}}},
        [1],
        ["x"],
    ),
    "beside a reference": ({"$ref": "#/$defs/N", "minimum": 300, "$defs": DEFS}, [300], [3, "x"]),
    "a format that any text has": ({"type": "string", "format": "path", "minLength": 1}, ["a/b"], [""]),
    "parts": ({"allOf": [A, B]}, [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}, 3]),
    "parts of parts": ({"allOf": [{"allOf": [A]}, B]}, [{"a": 1, "b": "x"}], [{"a": 1}, {"b": "x"}]),
    "part beside type": ({"type": "integer", "allOf": [{"minimum": 3}]}, [5], [1, "x"]),
    "part beside properties": ({**A, "allOf": [{"required": ["b"]}]}, [{"a": 1, "b": 1}], [{"a": 1}, {"b": 1}]),
    "branches beside type": ({"type": "integer", "anyOf": [{"minimum": 300}, {"maximum": -500}]}, [300], [1, "x"]),
    "branches that require": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}],
    ),
    "a type and references": ({"type": "object", "anyOf": [{"$ref": "#/$defs/A"}, B], "$defs": DEFS}, [{"a": 1}], [{}]),
    "number": ({"minimum": 5}, [7], [3]),
    "an address that is not empty": ({"type": "string", "format": "uri", "minLength": 1}, ["a:b"], [""]),
    "string": ({"type": "array", "items": {"maxLength": 2}}, [["ab"]], [["abc"]]),
    "required alone": ({"type": "object", "required": ["q"]}, [{"q": 1}, {"q": []}], [{}]),
    "required beside others": ({**A, "required": ["a", "q"]}, [{"a": 1, "q": None}], [{"a": 1}, {"q": 1}]),
    "required of a type": (
        {"type": "object", "required": ["q"], "additionalProperties": {"type": "integer"}},
        [{"q": 1}],
        [{}, {"q": "x"}],
    ),
    "values of a type": ({"type": "string", "enum": ["a", 5]}, ["a"], [5]),
    "one and one are not true": ({"const": 1, "enum": [True, 1]}, [1], [True]),
    "a tag as pydantic writes it": ({"const": "a", "enum": ["a"], "title": "T", "type": "string"}, ["a"], ["b"]),
    "an optional": (
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "T"},
        [5, None],
        ["x"],
    ),
    "a described reference": (
        {"properties": {"x": {"$ref": "#/$defs/A", "description": "d"}}, "required": ["x"], "$defs": DEFS},
        [{"x": {"a": 1}}],
        [{"x": {}}],
    ),
    "references to elsewhere": (
        {
            "$ref": "#/components/schemas/T~1x",
            "components": {
                "schemas": {
                    "T/x": {
                        "type": "object",
                        "properties": {"t": {"$ref": "#/components/schemas/T~1x"}, "m": {"minimum": 3}},
                    },
                }
            },
        },
        [{"t": {"m": 4}}, {"t": {"t": {}}}],
        [{"t": {"m": 1}}, 3],
    ),
    "references to elsewhere of like names": (
        {
            "properties": {"p": {"$ref": "#/x/a~1b"}, "q": {"$ref": "#/x/a/1b"}},
            "x": {"a/b": {"type": "null"}, "a": {"1b": {"type": "integer"}}},
        },
        [{"p": None, "q": 1}],
        [{"p": 1}, {"q": None}],
    ),
    "one of two types": ({"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}]}, [1, "x", None], [1.5, True]),
    "one of two constants": (
        {"oneOf": [{"const": "a", "title": "A"}, {"enum": ["b", 1]}, {"type": "boolean"}]},
        ["a", "b", 1, True],
        ["c", 2],
    ),
    "one of two ranges": (
        {"oneOf": [{"type": "number", "maximum": 0}, {"type": "integer", "exclusiveMinimum": 0}]},
        [-1.5, 0, 3],
        ["x", 0.5],
    ),
    "one of two tagged": (
        {"oneOf": [CAT, DOG]},
        [{"kind": "cat", "age": 1}, {"kind": "dog"}],
        [{"kind": "x"}, {"age": 1}],
    ),
    "one of two by what each needs": ({"oneOf": [A, B]}, [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
    "one of two without types": (
        {"oneOf": [{key: each[key] for key in ("properties", "required")} for each in (A, B)] + [False]},
        [{"a": 1}, {"b": "x"}],
        [{}, {"a": 1, "b": "x"}],
    ),
    "one of two properties": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}, "c": {}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}],
        [{}, {"c": 1}, {"a": 1, "b": 1}],
    ),
    "one of two that forbid": (
        {"oneOf": [{**A, **CLOSED}, {**A, "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}]},
        [{"a": 1}, {"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "one of several deep": (
        {
            "oneOf": [{"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/A"}]}]}, {"type": "array"}],
            "$defs": DEFS,
        },
        [None, {"a": 1}, [1]],
        [1, {}],
    ),
    "one of two models with defaults": (
        {
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "discriminator": {"propertyName": "kind"},
            "$defs": UNTAGGED,
        },
        [{"kind": "cat"}, {"kind": "cat", "age": 1}, {"kind": "dog", "age": 1}],
        [{"age": 1}],
    ),
    "a branch that nothing matches": ({"anyOf": [False, {"type": "null"}]}, [None], [1]),
    "the narrowest range": ({"type": "number", "minimum": 1.000001, "maximum": 1.000001}, [1.000001], [1, 2]),
    "a range about nothing": ({"exclusiveMinimum": -1e-7, "maximum": 1e-7}, [0], [1, -1]),
    "a described part": (
        {"allOf": [{"$ref": "#/$defs/A"}], "default": {}, "examples": [1], "readOnly": True, "$defs": DEFS},
        [{"a": 1}],
        [{}],
    ),
}
#: Models of pydantic's with a tag that has a default, and that lead to themselves.
TREE = {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"$ref": "#/$defs/Fork"}], "discriminator": {"propertyName": "kind"}}
LEAF, FORK = (
    {"type": "object", "properties": {"kind": {"const": kind, "default": kind, "type": "string"}, **others}}
    for kind, others in (("leaf", {"v": {"type": "integer"}}), ("fork", {"a": TREE, "b": TREE}))
)
ENFORCED["integers between fractions"] = (
    {"type": "integer", "exclusiveMinimum": -0.5, "maximum": 2.5},
    [0, 2],
    [-1, 3],
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "parts that meet": ({"allOf": [{"minimum": 3}, {"minimum": 5}]}, "`minimum`"),
    "parts that close": ({"allOf": [{**A, "additionalProperties": False}, B]}, "`additionalProperties`, `properties`"),
    "parts of one text": ({"allOf": [{"pattern": "^a$"}, {"format": "date"}]}, "cannot be combined"),
    "no value of the type": ({"type": "string", "const": 5}, "no value of `const`"),
    "beside values": ({"enum": ["a", "bb"], "minLength": 2}, "`minLength` beside `enum`"),
    "elsewhere": ({"$ref": "#/x", "x": {"uniqueItems": True}}, "`uniqueItems`"),
    "what leads to itself": ({"$ref": "#", "type": "object"}, "'#' leads back to itself"),
    "what leads to itself by others": (
        {
            "items": {"$ref": "#/$defs/a", "type": "object"},
            "$defs": {"a": {"$ref": "#/x"}, "b": {}},
            "x": {"$ref": "#/x"},
        },
        "'#/x' leads back to itself",
    ),
    "what leads far": (
        {"$ref": "#/x0", **{f"x{i}": {"items": {"$ref": f"#/x{i + 1}"}} for i in range(1000)}, "x1000": {}},
        "too far",
    ),
    "an anchor": ({"items": {"$ref": "#a"}, "$defs": {"a": {"$anchor": "a", "type": "null"}}}, "'#a' leads elsewhere"),
    "an id": ({"items": {"$ref": "a"}, "$defs": {"a": {"$id": "a", "type": "null"}}}, "'a' leads elsewhere"),
    "a reference to no schema": ({"$ref": "#/x", "x": [1]}, "what is no schema"),
    "no type": ({"type": []}, "`type` cannot be so"),
    "bounds of two types": ({"minimum": 5, "minLength": 3}, "need a `type`"),
    "required and forbidden": ({**A, "required": ["q"], "additionalProperties": False}, "`required` names 'q'"),
    "one of overlapping types": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "branches 0 and 1 both"),
    "one of overlapping ranges": ({"oneOf": [{"maximum": 0}, {"type": "integer", "minimum": 0}]}, "branches 0 and 1"),
    "one of the same twice": ({"oneOf": [{"type": "null"}, A, A]}, "branches 1 and 2"),
    "one of open objects": (
        {"oneOf": [{**A, "additionalProperties": {}}, {**B, "additionalProperties": {}}]},
        "branches 0 and 1",
    ),
    "one of two that need no other": ({"oneOf": [A, {**A, "required": []}]}, "branches 0 and 1"),
    "one of nested": (
        {"oneOf": [{"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "integer"}]},
        "branches 0",
    ),
    "one of shared values": ({"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}, "branches 0 and 1"),
    "one of values and a type": ({"oneOf": [{"enum": ["a", 1]}, {"type": "string"}]}, "branches 0 and 1"),
    "one of ranges and others": (
        {"oneOf": [{"type": ["number", "null"], "maximum": 0}, {"type": ["number", "null"], "minimum": 1}]},
        "branches 0 and 1",
    ),
    "one of patterns": (
        {"oneOf": [A, {"type": "object", "patternProperties": {"^a$": {}}, **CLOSED}]},
        "branches 0 and 1",
    ),
    "one of the same name": ({"oneOf": [{"type": "object", "required": ["a"]}] * 2}, "branches 0 and 1"),
    "one of what leads to itself": (
        {"oneOf": [{"$ref": "#/$defs/T"}, {"$ref": "#/$defs/T"}], "$defs": {"T": {"oneOf": [{"$ref": "#/$defs/T"}]}}},
        "branches 0 and 1",
    ),
    "a pattern that is a number": ({"type": "string", "pattern": 5}, "`pattern` cannot be so"),
    "no branch": ({"anyOf": []}, "`anyOf` has no branch"),
    "one of nothing": ({"items": {"oneOf": []}}, "`oneOf` has no branch"),
    "no branch of a property": ({"properties": {"a": {"anyOf": []}}, "required": ["a"]}, "`anyOf` has no branch"),
    "no branch but false": ({"type": "integer", "anyOf": [False, False]}, "`anyOf` has no branch"),
    "nothing but false": ({"oneOf": [False]}, "`oneOf` has no branch"),
    "a narrow range": ({"type": "number", "minimum": 1.0000001, "maximum": 1.0000002}, "within its bounds"),
    "a range of small numbers": ({"properties": {"a": {"minimum": 1e-7, "maximum": 2e-7}}}, "within its bounds"),
    "a range beside null": ({"type": ["number", "null"], "minimum": 1e-7, "maximum": 2e-7}, "within its bounds"),
    "a range without its ends": ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.000001}, "within its bounds"),
    "a negative range": ({"minimum": -1.0000002, "exclusiveMaximum": -1.0000001}, "within its bounds"),
    "names of none": ({"type": "object", "additionalProperties": False, "propertyNames": {}}, "`propertyNames`"),
    "a name that is told of twice": ({**A, "patternProperties": {"^[a-c]$": {"type": "null"}}}, "'a' is of"),
    "an empty name that is": ({"properties": {"": {}}, "patternProperties": {"^x?$": {"type": "null"}}}, "'' is of"),
    "names of named": ({**A, "propertyNames": {"pattern": "^a+$"}}, "`propertyNames`"),
}


def takes(schema: dict[str, Any], value: Any) -> bool:
    matcher = BYTES.load(BYTES.compile(Grammar("json_schema", json.dumps(schema)))).matcher()
    try:
        return [matcher.accept(ord(character)) for character in json.dumps(value)][-1] or matcher.may_end
    except GrammarError:
        return False


def check_enforced(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        jsonschema.validate(value, schema)
        assert takes(schema, value), value
    for value in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, schema)
        assert not takes(schema, value), value


def check_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(GrammarError) as refused:
        BYTES.compile(Grammar("json_schema", json.dumps(schema)))
    assert words in str(refused.value)
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    with pytest.raises(GrammarError):
        BYTES.compile(Grammar("structural_tag", json.dumps(tag)))


@pytest.mark.parametrize("name", ENFORCED)
def test_what_a_schema_asks_is_enforced(name: str) -> None:
    check_enforced(*ENFORCED[name])


def test_what_a_discriminator_names_is_written() -> None:
    schema = {**TREE, "$defs": {"Leaf": LEAF, "Fork": {**FORK, "required": ["a", "b"]}}}
    leaf = {"kind": "leaf", "v": 1}
    assert takes(schema, {"kind": "fork", "a": {"kind": "fork", "a": leaf, "b": {"kind": "leaf"}}, "b": leaf})
    assert not takes(schema, {"v": 1})
    assert not takes(schema, {"a": leaf, "b": leaf})


def test_dates_are_those_that_there_are() -> None:
    for format, good, bad in (
        ("date", "2024-02-29", "2023-02-29"),
        ("time", "23:59:59.5Z", "23:59:60Z"),
        ("date-time", "2023-04-30T10:00:00+02:00", "2023-04-31T10:00:00+02:00"),
        ("duration", "P1Y2M3DT4H5M6S", "P1234567D"),
        ("ipv4", "10.0.29.255", "10.0.029.255"),
    ):
        schema = {"type": ["string", "null"], "format": format}
        assert takes(schema, good)
        assert takes(schema, None)
        assert not takes(schema, bad)
        assert takes({"propertyNames": {"format": format}}, {good: 1})
        assert not takes({"propertyNames": {"format": format}}, {bad: 1})
        assert takes({"type": "integer", "format": format}, 5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_enforced_is_refused_by_its_name(name: str) -> None:
    check_refused(*REFUSED[name])


def grown(name: str, tag: dict[str, Any]) -> dict[str, Any]:
    """A tree of many branches, each with its tag behind what it leads to."""
    branch = {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{name}"}, "k": tag}, "required": ["a", "k"]}
    return {"anyOf": [branch] * 30}


def test_what_would_take_for_ever_to_compare_is_refused_soon() -> None:
    either = {"oneOf": [{"$ref": "#/$defs/T"}, {"$ref": "#/$defs/U"}]}
    types = {"T": grown("T", {"type": "integer"}), "U": grown("U", {"type": "string"})}
    with pytest.raises(GrammarError, match="branches 0 and 1"):
        enforceable(either | {"$defs": types})
    enforceable(either | {"$defs": {"T": grown("T", {"const": 1}), "U": grown("U", {"const": 2})}})


def test_many_branches_are_compared() -> None:
    branches = [{"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(200)]
    assert enforceable({"oneOf": branches})["anyOf"] == branches
