"""What functions take is told as it was sent, and worked out where it takes nobody's time."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.argument_grammar import STYLE
from nbgen.engine.call_arguments import arguments, worked_out
from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.messages import ToolOptions
from nbgen.sampling_params import SamplingParams
from tests.engine.test_answer_format import TOOLS
from tests.engine.test_call_grammar import JSON, grammar
from tests.engine.test_schema_keywords import SCHEMAS

BRANCH = {"type": "object", "properties": {"a": {"$ref": "#/$defs/T"}, "k": {}}, "required": ["a", "k"]}
#: Seconds to tell its branches apart.
HARD = {"oneOf": [{"$ref": "#/$defs/T"}] * 2, "$defs": {"T": {"anyOf": [BRANCH] * 30}}, "type": "object"}
MANY = [{"type": "function", "function": {"name": f"f{i}", "parameters": HARD}} for i in range(128)]


def tag_of(part: dict[str, Any]) -> Grammar:
    format = {"type": "sequence", "elements": [part]}
    return Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": format}))


@pytest.mark.parametrize(
    ("tools", "params"),
    [
        (ToolOptions(tools=MANY, required=True), JSON),
        (ToolOptions(tools=MANY, guided=True), SamplingParams()),
        (ToolOptions(tools=MANY, strict=["f1"]), SamplingParams()),
        (ToolOptions(tools=TOOLS), SamplingParams(regex="{" + " " * 60_000)),
        (ToolOptions(tools=TOOLS), SamplingParams(json_schema=json.dumps(HARD))),
    ],
)
def test_who_asks_meanwhile_does_not_wait_for_schemas(tools: ToolOptions, params: SamplingParams) -> None:
    started = time.thread_time()
    assert grammar("objects", tools, params)
    assert time.thread_time() - started < 0.5


@given(schema=SCHEMAS, strict=st.booleans(), style=st.sampled_from(["json", STYLE]))
def test_any_parameters_are_worked_out_or_refused(schema: dict[str, Any], strict: bool, style: str) -> None:
    tag = tag_of(arguments({"name": "f", "parameters": schema}, style, strict=strict))
    with suppress(GrammarError):
        assert '"arguments"' not in worked_out(tag).text


def test_values_that_look_like_a_function_are_values() -> None:
    schema = {"enum": [{"type": "arguments"}]}
    tag = tag_of({"type": "json_schema", "json_schema": schema})
    assert json.loads(worked_out(tag).text) == json.loads(tag.text)


@pytest.mark.parametrize(
    "part", [{}, {"function": "f"}, {"function": "f", "parameters": "[]", "style": "json"}, {"parameters": "["}]
)
def test_a_part_that_no_function_made_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="is not as it is made"):
        worked_out(tag_of({"type": "arguments", **part}))
