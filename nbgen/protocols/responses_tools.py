"""The tools of OpenAI's responses, as those of chat completions: functions, and namespaces of functions.

The model sees a namespace's function under both names, joined by a dot. Knows no other field and no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import refuse_inside

UNSUPPORTED_IN_TOOLS: dict[str, tuple[Any, ...]] = {
    "async": (None, False),
    "defer_loading": (None, False),
    "allowed_callers": (None, ["direct"]),
    "output_schema": (None, {}),
}


class FunctionTool(msgspec.Struct, tag_field="type", tag="function", omit_defaults=True):
    """A function, which the caller runs: no tool runs on the server."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Namespace(msgspec.Struct, tag_field="type", tag="namespace"):
    """Functions that belong together."""

    name: str
    tools: list[FunctionTool]
    description: str = ""


Tool = FunctionTool | Namespace
#: Full names of functions, with their namespaces and their names in these.
Members = dict[str, tuple[str, str]]


def refuse_unsupported_tools(
    given: Any, field: str = "tools", kinds: Sequence[str] = ("function", "namespace")
) -> None:
    """Raise InvalidRequest for a tool of another kind, or one that wants something unsupported."""
    for place, tool in enumerate(given if isinstance(given, list) else ()):
        kind, own = tool.get("type") if isinstance(tool, dict) else None, f"{field}[{place}]"
        if isinstance(kind, str) and kind not in kinds:
            words = f"there is only {' and '.join(kinds)}, which the caller runs. Leave it out: no tool runs here"
            raise InvalidRequest(f"a tool of the type {kind!r:.80} is not supported: {words}", field=f"{own}.type")
        refuse_inside({own: tool}, own, UNSUPPORTED_IN_TOOLS)
        if kind == "namespace":
            refuse_unsupported_tools(tool.get("tools"), f"{own}.tools", ("function",))


def chat_tools(tools: Sequence[Tool], choice: Any) -> tuple[list[dict[str, Any]], Any]:
    """The tools and the tool choice in the form of chat completions. Raises InvalidRequest."""
    match choice:
        case {"type": "function", "name": name}:
            choice = {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            named = [{"type": "function", "function": tool} for tool in allowed]
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        case dict():
            raise InvalidRequest(
                f"tool_choice of the type {choice.get('type')!r:.80} is not supported: there are function, with a "
                "name, and allowed_tools, with a mode and tools",
                field="tool_choice",
            )
    return [{"type": "function", "function": _without_type(tool)} for tool in _functions(tools)], choice


def full_name(name: str, namespace: str) -> str:
    """The name under which the model sees a function; "" is no namespace."""
    return f"{namespace}.{name}" if namespace else name


def members(tools: Iterable[Tool]) -> Members:
    """The functions of all namespaces."""
    spaces = [tool for tool in tools if isinstance(tool, Namespace)]
    return {full_name(tool.name, space.name): (space.name, tool.name) for space in spaces for tool in space.tools}


def repeated(tool: Tool) -> dict[str, Any]:
    """A tool as a response repeats it."""
    if isinstance(tool, Namespace):
        own = {"type": "namespace", "name": tool.name, "description": tool.description}
        return own | {"tools": [repeated(each) for each in tool.tools]}
    return {"type": "function"} | {name: getattr(tool, name) for name in tool.__struct_fields__}


def _functions(tools: Iterable[Tool]) -> Iterator[FunctionTool]:
    """All functions under their full names. A namespace's first one also tells what the namespace is for."""
    for tool in tools:
        if isinstance(tool, FunctionTool):
            yield tool
            continue
        told = f"{tool.name}: {tool.description}" if tool.description else ""
        for function in tool.tools:
            words, told = "\n\n".join(filter(None, (function.description, told))), ""
            name = full_name(function.name, tool.name)
            yield msgspec.structs.replace(function, name=name, description=words or None)


def _without_type(tool: FunctionTool) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(tool).items() if name != "type"}
