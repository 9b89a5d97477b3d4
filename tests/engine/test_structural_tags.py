"""Schemas in structural tags."""

import json
from typing import Any

import pytest

from nbgen.engine.grammar import Grammar
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
