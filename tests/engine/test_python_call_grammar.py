"""Calls in Python's syntax can be what a schema says, and nothing else."""

from typing import Any

import msgspec
import pytest

from nbgen.engine.written_calls import read_calls
from tests.engine.test_call_grammar import MUST, STRICT, Accepts, accepts, bare, refused, taking  # noqa: F401


def test_calls_may_be_all_of_an_answer_in_python(accepts: Accepts) -> None:  # noqa: F811
    first, second = '[get_weather(city="a]", days=3)', 'get-news.2(city="b", days=0)]'
    assert accepts(bare(MUST), f"{first}, {second}")
    assert accepts(bare(MUST), f"{first}]")
    assert not accepts(bare(MUST), "[get_time()]")
    assert not accepts(bare(MUST), "[get_weather(days=3)]")
    strict = bare(msgspec.structs.replace(MUST, required=False, strict=STRICT))
    assert accepts(strict, f"[1] and [get_time()] and {first}]")
    assert not accepts(strict, "and [get_weather(days=3)]")


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({}, "", "a=1"),
        ({"properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}, "required": ["b", "a"]},
         "a=True, b=None", "b=None"),
        ({"properties": {"a": {"type": "integer", "maximum": 9}}}, "a=8", "a=80"),
        ({"properties": {"a": {"enum": ["x", 1]}, "b": {"type": "integer"}, "c": {}}, "required": ["b"]},
         'b=1, a="x", c={"x": [true]}', 'a="x"'),
        ({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}, "b=1", "b=1, a=1"),
        ({"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"type": "array", "items": {"type": "integer"}}}},
         "a=[1, 2]", 'a=["x"]'),
    ],
)  # fmt: skip
def test_arguments_in_python_are_as_the_schema_says(
    accepts: Accepts,  # noqa: F811
    parameters: dict[str, Any],
    good: str,
    bad: str,
) -> None:
    tag = bare(MUST, {"type": "object", **parameters})
    assert accepts(tag, f"[f({good})]")
    assert not accepts(tag, f"[f({bad})]")
    assert read_calls(f"[f({good})]")


@pytest.mark.parametrize(
    "parameters",
    [
        {"oneOf": [{"required": ["a"]}]},
        {"properties": {"a b": {}}},
        {"properties": {}, "required": ["a"]},
        {"properties": {f"a{i}": {} for i in range(30)}},
    ],
)
def test_what_python_cannot_say_is_refused(parameters: dict[str, Any]) -> None:
    assert "Python's syntax" in str(refused(bare(MUST, {"type": "object", **parameters})))
