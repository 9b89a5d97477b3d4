"""Schemas in structural tags."""

import json
from typing import Any

import pytest

from nbgen.engine.grammar import Grammar, GrammarError
from tests.conftest import at_least
from tests.engine.test_xgrammar_schema import BYTES


@pytest.mark.parametrize("schema", [{}, {"json_schema": None}])
@pytest.mark.parametrize("type_", ["json_schema", "qwen_xml_parameter"])
def test_no_schema_in_a_structural_tag_is_any_value(type_: str, schema: dict[str, Any]) -> None:
    content = {"type": type_, **schema}
    format = {"type": "sequence", "elements": [{"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}]}
    tag = json.dumps({"type": "structural_tag", "format": format})
    matcher = BYTES.load(BYTES.compile(Grammar("structural_tag", tag))).matcher()
    value = "[1]" if type_ == "json_schema" else "<parameter=a>1</parameter>"
    assert [matcher.accept(ord(character)) for character in f"<f>{value}</f>"][-1]


def test_a_value_that_looks_like_a_part_of_a_tag_is_left_alone() -> None:
    schema = {"const": {"type": "json_schema"}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
    matcher = BYTES.load(BYTES.compile(Grammar("structural_tag", json.dumps(tag)))).matcher()
    assert [matcher.accept(ord(character)) for character in '{"type":"json_schema"}'][-1]


@pytest.mark.skipif(not at_least("xgrammar", "0.2.9"), reason="an older one has no such style")
def test_a_style_without_escapes_has_none_in_a_limited_string_at_any_level() -> None:
    limited = {"type": "string", "maxLength": 3}
    object_ = {"type": "object", "required": ["a"], "additionalProperties": False}
    schema = {**object_, "properties": {"a": {**object_, "properties": {"a": limited}}}}
    format = {"type": "json_schema", "style": "gemma", "json_schema": schema}
    tag = json.dumps({"type": "structural_tag", "format": format})
    compiled = BYTES.load(BYTES.compile(Grammar("structural_tag", tag)))
    for text in ("abc", 'a"c', "a\\c"):
        matcher = compiled.matcher()
        assert [matcher.accept(ord(each)) for each in '{a:{a:<|"|>' + text + '<|"|>}}'][-1], text
    matcher = compiled.matcher()
    with pytest.raises(GrammarError, match="none that the grammar allows"):
        [matcher.accept(ord(each)) for each in '{a:{a:<|"|>abcd']
