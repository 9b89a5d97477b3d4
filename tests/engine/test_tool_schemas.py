"""Schemas as well-known servers of tools and makers of schemas write them: what is drawn within them is valid."""

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from transformers import AutoTokenizer

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import check
from nbgen.engine.grammar_xgrammar import CompiledXGrammar, XGrammarBackend
from nbgen.engine_config import BUNDLED_FOLDER

Schema = dict[str, Any]
#: What a string ends with, and other values.
ENDINGS = (b'"', b"}]", b",")
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
CLOSED = {"additionalProperties": False}
TEXT, NUMBER, WHOLE, FLAG = ({"type": name} for name in ("string", "number", "integer", "boolean"))


def record(properties: Schema, *required: str, **others: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), **others}


def many(items: Schema, **others: Any) -> Schema:
    return {"type": "array", "items": items, **others}


def optional(*branches: Schema) -> Schema:
    """As pydantic writes what may be None."""
    return {"anyOf": [*branches, {"type": "null"}], "default": None}


DAY = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
)
HEX, BYTE = "[0-9a-fA-F]", "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#: Formats as zod's fourth version writes them, each with its pattern.
OF_ZOD: dict[str, str] = {
    "email": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    "uuid": f"^({HEX}{{8}}-{HEX}{{4}}-[1-8]{HEX}{{3}}-[89abAB]{HEX}{{3}}-{HEX}{{12}}|0{{8}}(?:-0{{4}}){{3}}-0{{12}})$",
    "date": f"^{DAY}$",
    "date-time": rf"^{DAY}T(?:(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$",
    "base64": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
    "ipv4": rf"^(?:{BYTE}\.){{3}}{BYTE}$",
    "e164": r"^\+(?:[0-9]){6,14}[0-9]$",
}
ADDRESS = record({"street": TEXT, "zip": optional({**TEXT, "pattern": r"^\d{5}(-\d{4})?$"})}, "street")
CIRCLE = record({"kind": {**TEXT, "const": "circle"}, "radius": {**NUMBER, "exclusiveMinimum": 0}}, "kind", "radius")
SQUARE = record({"kind": {**TEXT, "const": "square"}, "side": {**NUMBER, "exclusiveMinimum": 0}}, "kind", "side")
TAKEN: dict[str, Schema] = {
    "no arguments": record({}, **DRAFT_7, **CLOSED),
    "nothing said": {},
    "weather": record(
        {
            "location": {**TEXT, "description": "City and country, e.g. Bogotá, Colombia"},
            "units": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", None]},
            "days": {**WHOLE, "minimum": 1, "maximum": 16, "default": 1},
        },
        *("location", "units", "days"),
        **CLOSED,
    ),
    "edits of a file": record(
        {
            "path": {**TEXT, "minLength": 1, "maxLength": 4096},
            "edits": many(record({"oldText": TEXT, "newText": TEXT}, "oldText", "newText", **CLOSED)),
            "head": {**NUMBER, "exclusiveMinimum": 0},
            "dryRun": {**FLAG, "default": False},
        },
        *("path", "edits"),
        **DRAFT_7,
        **CLOSED,
    ),
    "a page": record(
        {
            "url": {**TEXT, "format": "uri", "minLength": 1, "title": "Url"},
            "max_length": {**WHOLE, "exclusiveMinimum": 0, "exclusiveMaximum": 1000000, "default": 5000},
            "raw": {**FLAG, "default": False, "title": "Raw"},
            "link": {**TEXT, "format": "url"},
        },
        "url",
        title="Fetch",
    ),
    "an issue": record(
        {
            "owner": {**TEXT, "pattern": "^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,37}[a-zA-Z0-9])?$"},
            "repo": {**TEXT, "pattern": r"^[\w.-]{1,100}$"},
            "title": {**TEXT, "minLength": 1, "maxLength": 256},
            "body": {**TEXT, "maxLength": 8192},
            "milestone": {**NUMBER, "multipleOf": 1},
            "state": {"enum": ["open", "closed"]},
        },
        *("owner", "repo", "title", "body", "milestone"),
        **CLOSED,
    ),
    "pages of a list": record(
        {
            "page": {**WHOLE, "minimum": 1, "multipleOf": 1},
            "perPage": {**WHOLE, "minimum": 10, "maximum": 100, "multipleOf": 10},
            "ratio": {**NUMBER, "minimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
            "half": {**WHOLE, "multipleOf": 0.5},
        },
        *("page", "perPage", "ratio", "half"),
    ),
    "a query": record(
        {"sql": TEXT, "params": many({}), "options": {"type": "object", "additionalProperties": True}}, "sql"
    ),
    "a request": record(
        {
            "method": {**TEXT, "enum": ["GET", "POST"]},
            "headers": {"type": "object", "additionalProperties": TEXT},
            "body": {"anyOf": [TEXT, {"type": "object", "additionalProperties": {}}, {"type": "null"}]},
        },
        *("method", "body"),
    ),
    "shapes": record(
        {
            "shape": {
                "discriminator": {"mapping": {"circle": "#/$defs/Circle"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}],
            }
        },
        "shape",
        **{"$defs": {"Circle": CIRCLE, "Square": SQUARE}},
    ),
    "a person": record(
        {
            "name": {**TEXT, "minLength": 1, "maxLength": 80, "examples": ["Ada"]},
            "email": {**TEXT, "format": "email", "maxLength": 100},
            "id": {**TEXT, "format": "uuid4", "maxLength": 36},
            "born": {**TEXT, "format": "date"},
            "seen": optional({**TEXT, "format": "date-time"}),
            "home": {"allOf": [{"$ref": "#/$defs/Address"}], "description": "Where they live"},
            "others": many({"$ref": "#/$defs/Address"}, maxItems=3),
            "colors": many({"$ref": "#/$defs/Color"}, uniqueItems=True, minItems=2),
            "point": {"type": "array", "prefixItems": [NUMBER, NUMBER], "minItems": 2, "maxItems": 2},
            "scores": {"type": "object", "additionalProperties": NUMBER},
            "secret": {**TEXT, "format": "password", "writeOnly": True},
            "picture": {**TEXT, "format": "base64"},
        },
        *("name", "email", "id", "born", "home", "colors", "picture"),
        **{"$defs": {"Address": ADDRESS, "Color": {**TEXT, "enum": ["red", "green", "blue"]}}},
    ),
    "a comment": {
        "$ref": "#/definitions/Comment",
        "definitions": {
            "Comment": record({"text": TEXT, "replies": many({"$ref": "#/definitions/Comment"})}, "text", **CLOSED)
        },
        **DRAFT_7,
    },
    "an event": record(
        {
            "event": {"anyOf": [{**TEXT, "const": "click"}, {**TEXT, "const": "key"}]},
            "nullable": {"type": ["number", "null"]},
            "code": {"type": ["string", "integer"]},
            "flag": {"const": True},
            "either": {"oneOf": [TEXT, many(TEXT)]},
        },
        *("event", "code", "flag", "either"),
        **CLOSED,
    ),
    "records": record(
        {
            "env": {"type": "object", "additionalProperties": TEXT, "propertyNames": {"pattern": "^[A-Z_]+$"}},
            "labels": {"type": "object", "patternProperties": {"^[a-z]+$": {"type": ["string", "number"]}}, **CLOSED},
            "x": {
                **record({"x-kind": {**TEXT, "title": "Kind"}, "name": TEXT}),
                "patternProperties": {"^x-": {**TEXT, "description": "More"}},
                **CLOSED,
            },
        },
        *("env", "labels", "x"),
    ),
    "both": {"allOf": [record({"id": TEXT}, "id"), record({"size": WHOLE}, "size")], **DRAFT_7},
    "places": record(
        {
            "range": {"type": "array", "items": [NUMBER, NUMBER], "minItems": 2, "maxItems": 2},
            "rest": {"type": "array", "items": [TEXT], "additionalItems": NUMBER},
        },
        "range",
        **DRAFT_7,
    ),
    "a search": record(
        {
            "query": {**TEXT, "maxLength": 400},
            "near": record(
                {
                    "lat": {**NUMBER, "minimum": -90, "maximum": 90},
                    "lon": {**NUMBER, "minimum": -180, "maximum": 180},
                },
                *("lat", "lon"),
            ),
            "lang": {**TEXT, "pattern": "^[a-z]{2}(-[A-Z]{2})?$"},
            "signs": {**TEXT, "pattern": r"^[ \U00010000-\U0010FFFF]{1,30}$"},
        },
        *("query", "near", "lang", "signs"),
    ),
    "what contains itself": record(
        {"type": {**TEXT, "enum": ["div", "button"]}, "label": TEXT, "children": many({"$ref": "#"})},
        *("type", "label", "children"),
        **CLOSED,
    ),
    "days": record(
        {
            "days": many({**TEXT, "enum": ["mon", "tue", "wed", "thu", "fri"]}, uniqueItems=True, minItems=1),
            "week": many({"enum": [*range(7)]}, uniqueItems=True, maxItems=3),
            "one": many(WHOLE, maxItems=1, uniqueItems=True),
            "some": many({"allOf": [{"enum": [1, "a", True, None]}, {"type": ["null", "string"]}]}, uniqueItems=True),
            "cron": {**TEXT, "pattern": r"^(\S+\s){4}\S+$"},
        },
        *("days", "week", "one", "some", "cron"),
    ),
    "one of two": {**record({"id": TEXT, "name": TEXT}), "anyOf": [{"required": ["id"]}, {"required": ["name"]}]},
    "OpenAPI": record(
        {
            "petId": {**WHOLE, "format": "int64", "example": 10, "nullable": True},
            "photo": {**TEXT, "format": "byte"},
            "tag": {"$ref": "#/components/schemas/Tag"},
        },
        *("petId", "tag"),
        components={"schemas": {"Tag": record({"id": {**WHOLE, "format": "int32"}})}},
    ),
    "formats of zod": record(
        {name: {**TEXT, "format": name, "pattern": pattern} for name, pattern in OF_ZOD.items()}
        | {"short": {**TEXT, "format": "email", "pattern": OF_ZOD["email"], "maxLength": 64}},
        *(*OF_ZOD, "short"),
        **CLOSED,
    ),
}
#: A schema that is refused, and its name of what is not held to.
REFUSED: dict[str, tuple[Schema, str]] = {
    "a set of anything": (many(TEXT, uniqueItems=True), "`uniqueItems`"),
    "a set of many": (many({"enum": [*range(9)]}, uniqueItems=True), "`uniqueItems`"),
    "a set and another": ({"allOf": [many(TEXT), many(TEXT, uniqueItems=True)]}, "`uniqueItems`"),
    "multiples without an end": ({**WHOLE, "multipleOf": 5, "minimum": 0}, "`multipleOf`"),
    "cents": ({**NUMBER, "multipleOf": 0.01, "minimum": 0, "maximum": 100}, "`multipleOf`"),
    "two steps": (
        {"allOf": [{**WHOLE, "multipleOf": 2, "minimum": 0, "maximum": 9}, {"multipleOf": 3}]},
        "`multipleOf`",
    ),
    "none": ({**WHOLE, "multipleOf": 7, "minimum": 1, "maximum": 6}, "`multipleOf`"),
    "a format of nobody's": ({**TEXT, "format": "color"}, "'color' is not known"),
    "a format and less": ({**TEXT, "format": "email", "pattern": r"@example\.com$"}, "format and pattern"),
    "a short address": ({**TEXT, "format": "email", "maxLength": 20}, "format and maxLength"),
    "two meanings of a name": (
        {**record({"x-a": WHOLE}), "patternProperties": {"^x-": TEXT}},
        "'x-a' is of `properties` and of `patternProperties`",
    ),
    "a condition": ({**record({"a": TEXT}), "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "`if`"),
}


class Drawing:
    """Draws answers of a schema from the bundled model's tokens, which soon end what they may."""

    def __init__(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(BUNDLED_FOLDER)
        self._end = tokenizer.eos_token_id
        self.backend = XGrammarBackend.from_tokenizer(tokenizer, len(tokenizer), {self._end})
        self._bytes = self.backend._tokenizer.decoded_vocab
        self._ends = [{token for token, text in enumerate(self._bytes) if text[:1] in first} for first in ENDINGS]

    def answer(self, compiled: CompiledXGrammar, seed: int) -> str:
        chance, matcher, drawn = random.Random(seed), compiled.matcher(), list[int]()
        bitmask = np.zeros((1, matcher.num_words), dtype=np.int32)
        while not drawn or drawn[-1] != self._end:
            matcher.fill(bitmask, 0)
            allowed = set(np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")).tolist())
            among = next(
                (some for some in (allowed & {self._end}, *map(allowed.intersection, self._ends)) if some), allowed
            )
            drawn.append(chance.choice(sorted(among if chance.random() < 0.7 else allowed)))
            matcher.accept(drawn[-1])
            assert len(drawn) < 2000
        return b"".join(self._bytes[token] for token in drawn[:-1]).decode()


@pytest.fixture(scope="module")
def drawing() -> Drawing:
    return Drawing()


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_drawn_within_a_schema_is_valid(drawing: Drawing, name: str) -> None:
    grammar = Grammar("json_schema", json.dumps(TAKEN[name]))
    check(grammar)
    compiled = drawing.backend.load(drawing.backend.compile(grammar))
    for seed in range(3):
        answer = json.loads(drawing.answer(compiled, seed))
        jsonschema.validate(answer, TAKEN[name], format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_held_to_is_refused_by_its_name(drawing: Drawing, name: str) -> None:
    schema, words = REFUSED[name]
    grammar = Grammar("json_schema", json.dumps(schema))
    with pytest.raises(GrammarError, match=re.escape(words)):
        _ = check(grammar), drawing.backend.compile(grammar)
