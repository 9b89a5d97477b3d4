"""`tools` and `tool_choice` of OpenAI-style bodies. Follows OpenAI's API reference; knows no model and no answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import ToolOptions

MAX_TOOLS = 128
MAX_TOOL_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Function(msgspec.Struct, omit_defaults=True):
    """A function's name, its description, and the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool; all tools are functions, so the type may be left out."""

    function: Function
    type: Literal["function"] = "function"


class ChosenFunction(msgspec.Struct):
    """A function by its name."""

    name: str


class AllowedFunction(msgspec.Struct):
    """A function that may be called."""

    function: ChosenFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct):
    """The tools that the model sees, and whether it must call one."""

    mode: Literal["auto", "required"]
    tools: list[AllowedFunction]


class Choice(msgspec.Struct):
    """The one function that must be called, or the subset of tools that is allowed."""

    function: ChosenFunction | None = None
    allowed_tools: AllowedTools | None = None
    type: Literal["function", "allowed_tools"] = "function"


ToolChoice = Literal["none", "auto", "required"] | Choice


def tool_options(
    tools: list[Tool] | None, choice: ToolChoice | None, parallel: bool | None = None, *, guided: bool = False
) -> ToolOptions | None:
    """The functions that the model may or must call; None if it is to see no tools. Raises InvalidRequest.

    With `guided`, a grammar makes any call name an existing function and have arguments that it takes.
    """
    if isinstance(choice, Choice) and choice.type == "allowed_tools":
        tools, choice = _allowed(tools or [], choice.allowed_tools)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice names what must be called, and there are no tools", field="tool_choice")
        return None
    if choice == "none":
        return None
    function = _chosen(choice)
    _check(tools, function)
    shown = [_for_template(tool) for tool in tools]
    if (size := len(msgspec.json.encode(shown))) > MAX_TOOL_BYTES:
        raise InvalidRequest(f"the tools have {size} bytes as JSON; at most {MAX_TOOL_BYTES}", field="tools")
    return ToolOptions(
        tools=shown,
        required=choice == "required",
        function=function,
        strict=[tool.function.name for tool in tools if tool.function.strict],
        guided=guided,
        parallel=parallel is not False and not function,
    )


def _chosen(choice: ToolChoice | None) -> str:
    """The name of the one function that must be called; "" if none is named."""
    if not isinstance(choice, Choice):
        return ""
    if choice.function is None or not choice.function.name:
        raise InvalidRequest("tool_choice of the type function names none: give `function`", field="tool_choice")
    return choice.function.name


def _check(tools: list[Tool], function: str) -> None:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"there are {len(tools)} tools; at most {MAX_TOOLS}", field="tools")
    names = [tool.function.name for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"a function is called {name!r:.80}; a name has 1 to 128 letters, digits, dots, dashes or underscores",
                field="tools",
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"two functions are called {name!r}", field="tools")
    if function:
        _check_chosen([function], tools)


def _allowed(tools: list[Tool], allowed: AllowedTools | None) -> tuple[list[Tool], ToolChoice]:
    """The allowed tools, and the mode in which they may be called. Raises InvalidRequest."""
    if allowed is None:
        raise InvalidRequest("tool_choice of the type allowed_tools needs `allowed_tools`", field="tool_choice")
    names = {tool.function.name: None for tool in allowed.tools}
    _check_chosen(names, tools)
    return [tool for tool in tools if tool.function.name in names], allowed.mode


def _check_chosen(names: Iterable[str], tools: list[Tool]) -> None:
    known = {tool.function.name for tool in tools}
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequest(f"tool_choice names {unknown[0]!r:.80}, which is no tool here", field="tool_choice")


def _for_template(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates take it: without `strict`, which the model does not see."""
    function = msgspec.structs.replace(tool.function, strict=None, parameters=tool.function.parameters or {})
    return {"type": "function", "function": msgspec.to_builtins(function)}
