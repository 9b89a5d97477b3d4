"""Functions' parameters as parts of a structural tag: placeholders with the schemas as sent, and their expansion.

Finding out how much of a schema can be enforced may take for ever. So a tag is made with placeholders here, and they
are expanded where grammars are compiled, in a process that can be killed. Plain Python.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from nbgen.engine.argument_grammar import STYLE, python_arguments
from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import parsed
from nbgen.engine.loose_schema import as_far_as_can_be
from nbgen.engine.marked_grammar import MARKED, MarkedArguments
from nbgen.engine.structural_tag import Format
from nbgen.engine.xgrammar_schema import enforceable

REMEDY = "leave out response_format and strict tools, and let tool_choice be auto or none"
#: The placeholder's type, which no library knows.
TYPE = "arguments"
#: Keys in a tag whose values are schemas and not parts of the tag.
SCHEMAS = ("json_schema", "schema")


class Arguments(msgspec.Struct):
    """The placeholder for a function's arguments; `parameters` is JSON, and `style` is how calls are written."""

    function: str
    parameters: str
    style: str
    strict: bool = False
    type: Literal["arguments"] = "arguments"


def arguments(function: dict[str, Any], style: str | None, *, strict: bool) -> Format:
    """The placeholder for a function's arguments: enforced fully if `strict`, else as far as possible."""
    parameters = json.dumps(function.get("parameters") or {"type": "object"})
    told = Arguments(function=function["name"], parameters=parameters, style=style or "json", strict=strict)
    return msgspec.to_builtins(told)


def worked_out(grammar: Grammar) -> Grammar:
    """The grammar with its placeholders expanded to parts that back ends know.

    Raises GrammarError if a strict function's parameters cannot be enforced, or not expressed in the calls' syntax.
    """
    if grammar.kind != "structural_tag" or TYPE not in grammar.text:
        return grammar
    return grammar._replace(text=json.dumps(_worked_out(parsed(grammar)), ensure_ascii=False))


def _worked_out(part: Any) -> Any:
    if isinstance(part, list):
        return [_worked_out(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == TYPE:
        return _of_function(part)
    return {name: each if name in SCHEMAS else _worked_out(each) for name, each in part.items()}


def _of_function(part: dict[str, Any]) -> Format:
    told, schema = _read(part)
    if told.strict:
        _check_strict(told.function, schema)
    parameters = schema if told.strict else as_far_as_can_be(schema)
    marked = told.style.startswith(MARKED)
    if told.style != STYLE and not marked:
        style = {} if told.style == "json" else {"style": told.style}
        return {"type": "json_schema", "json_schema": parameters or {"type": "object"}, **style}
    if marked:
        found = parameters and MarkedArguments.of(parameters, told.style, strict=told.strict)
    else:
        found = parameters and python_arguments(parameters)
    if not found:
        syntax = "a syntax of its own" if marked else "Python's syntax"
        raise GrammarError(
            f"this model calls tools in {syntax}, in which the parameters of {told.function!r} cannot be enforced: "
            f"{REMEDY}",
            field="tools",
        )
    return found


def _read(part: dict[str, Any]) -> tuple[Arguments, dict[str, Any]]:
    try:
        told = msgspec.convert(part, Arguments)
        return told, msgspec.convert(json.loads(told.parameters), dict[str, Any])
    except (msgspec.ValidationError, ValueError, RecursionError):
        raise GrammarError(f"a part of the type {TYPE!r} is not as it is made of a function") from None


def _check_strict(name: str, parameters: Any) -> None:
    """Raises GrammarError, which names the function, for parameters that cannot be enforced."""
    try:
        enforceable(parameters)
    except GrammarError as error:
        words = f"the parameters of the strict function {name!r} cannot be enforced: {error}"
        raise GrammarError(words, field="tools") from None
