"""What tools a model is shown, which it must call, and which cannot be."""

import time
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols.openai_tools import (
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    AllowedFunction,
    AllowedTools,
    Choice,
    ChosenFunction,
    Function,
    Tool,
    tool_options,
)


def tool(name: str = "f", **changes: Any) -> Tool:
    return Tool(type="function", function=Function(name=name, **changes))


def chosen(name: str) -> Choice:
    return Choice(function=ChosenFunction(name=name))


def test_a_template_sees_tools_without_what_is_for_the_server() -> None:
    options = tool_options([tool(description="does", parameters={"type": "object"}, strict=True), tool("g")], None)
    assert options is not None
    assert options.tools == [
        {"type": "function", "function": {"name": "f", "description": "does", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g", "parameters": {}}},
    ]
    assert (options.strict, options.required, options.function, options.parallel) == (["f"], False, "", True)


@pytest.mark.parametrize(
    ("choice", "parallel", "found"),
    [
        ("auto", True, (False, "", True)),
        ("auto", False, (False, "", False)),
        ("required", None, (True, "", True)),
        (chosen("f"), None, (False, "f", False)),
    ],
)
def test_what_must_be_called(choice: Any, parallel: bool | None, found: tuple[bool, str, bool]) -> None:
    options = tool_options([tool()], choice, parallel)
    assert options is not None
    assert (options.required, options.function, options.parallel) == found
    assert options.strict == []


def test_no_tools_are_none() -> None:
    assert tool_options([tool()], "none") is None
    for choice in (None, "none", "auto"):
        assert tool_options([], choice) is tool_options(None, choice) is None


@pytest.mark.parametrize(
    ("tools", "choice", "field", "words"),
    [
        ([], "required", "tool_choice", "there are no tools"),
        ([], chosen("f"), "tool_choice", "there are no tools"),
        ([tool()], chosen("g"), "tool_choice", "'g', which is no tool here"),
        ([tool(), tool()], None, "tools", "two functions are called 'f'"),
        ([tool("no spaces")], None, "tools", "1 to 128 letters"),
        ([tool("")], None, "tools", "1 to 128 letters"),
        ([tool("x" * 129)], None, "tools", "1 to 128 letters"),
        ([tool(f"f{number}") for number in range(MAX_TOOLS + 1)], None, "tools", "129 tools; at most 128"),
        ([tool(description="x" * MAX_TOOL_BYTES)], None, "tools", "bytes as JSON; at most 1048576"),
    ],
)
def test_tools_that_cannot_be_served_are_refused(tools: list[Tool], choice: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        tool_options(tools, choice)
    assert refusal.value.field == field


def test_as_many_and_as_long_as_may_be_are_taken() -> None:
    assert tool_options([tool("x" * 60 + f".{number}") for number in range(MAX_TOOLS)], None)
    assert tool_options([tool(description="x" * (MAX_TOOL_BYTES - 100))], None)


def test_far_too_many_tools_are_refused_soon() -> None:
    tools = [tool(f"f{i}") for i in range(30_000)]
    allowed = [AllowedFunction(function=ChosenFunction(name=each.function.name)) for each in reversed(tools)]
    choice = Choice(type="allowed_tools", allowed_tools=AllowedTools(mode="auto", tools=allowed))
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match="there are 30000 tools"):
        tool_options(tools, choice)
    assert time.thread_time() - started < 1
