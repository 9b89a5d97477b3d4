"""Properties that a schema leaves open have other names than those that it describes, whatever their letters."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from nbgen.engine.grammar import Grammar, GrammarError, Matcher
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from tests.engine.test_xgrammar_schema import check_enforced, check_refused

INTEGER = {"type": "integer"}
NAMED = {"type": "object", "properties": dict.fromkeys(["größe", "gr", "名前", 'q"', "\\", "^-]"], INTEGER)}
GOOD: list[Any] = [
    *({}, {"größe": 1}, {"名前": 1, "a": None}, {"": 1}, {"größ": "x", "größer": []}, {'q""': {}}),
    *({"a": None, "gröse": "x"}, {"\\\\": "x"}, {"^": "x"}, {"é": "x"}),
]
BAD: list[Any] = [{"größe": "x"}, {"a": 1, "名前": "x"}, {"gr": None}, {'q"': "x"}, {"\\": {}}, {"^-]": ""}]


@pytest.fixture(scope="module")
def backend(tiny_model: Path) -> XGrammarBackend:
    return XGrammarBackend.from_tokenizer(AutoTokenizer.from_pretrained(tiny_model), 264, {0})


def takes(matcher: Matcher, ids: list[int]) -> bool:
    try:
        for token in ids:
            matcher.accept(token)
    except GrammarError:
        return False
    return matcher.may_end


@pytest.mark.parametrize("rest", [{"additionalProperties": True}, {"unevaluatedProperties": {"minLength": 0}}])
def test_a_described_property_has_its_own_value(backend: XGrammarBackend, tiny_model: Path, rest: Any) -> None:
    encode = AutoTokenizer.from_pretrained(tiny_model).encode
    compiled = backend.load(backend.compile(Grammar("json_schema", json.dumps({**NAMED, **rest}))))
    texts = "unevaluatedProperties" in rest
    for value in GOOD:
        open_ones = [each for name, each in value.items() if name not in NAMED["properties"]]
        good = not texts or all(isinstance(each, str) for each in open_ones)
        ids = encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
        assert takes(compiled.matcher(), ids) == good, value
    for value in BAD:
        ids = encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False)
        assert not takes(compiled.matcher(), ids), value


def test_what_is_open_is_counted() -> None:
    schema = {"properties": {'"': INTEGER}, "required": ['"'], "additionalProperties": {"type": "null"}}
    counted = {**schema, "minProperties": 2, "maxProperties": 3}
    many = {'"': 1, "a": None, "b": None}
    check_enforced(counted, [many, {'"': 1, "a": None}], [{'"': 1}, {**many, "c": None}, {'"': 1, "a": 1}])


def test_names_of_what_has_none_are_refused() -> None:
    check_refused({"propertyNames": {"pattern": "^a"}, "unevaluatedProperties": False}, "`propertyNames`")


def test_many_names_are_compiled_soon(backend: XGrammarBackend) -> None:
    names = dict.fromkeys((f"größe {place} von" for place in range(200)), INTEGER)
    began = time.process_time()
    backend.compile(Grammar("json_schema", json.dumps({"properties": names, "additionalProperties": True})))
    assert time.process_time() - began < 5
