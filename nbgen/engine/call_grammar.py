"""The grammar of an answer that calls tools, or thinks before it is what it must be: a structural tag of xgrammar.

Made of the texts that a chat template writes around calls and thoughts. Knows neither tokens nor back ends.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.argument_grammar import python_arguments
from nbgen.engine.call_format import CallFormat
from nbgen.engine.grammar import Grammar, GrammarError, refusal
from nbgen.engine.grammar_limits import ANY_JSON, check
from nbgen.engine.loose_schema import can_be_enforced, loosened
from nbgen.engine.python_calls import STYLE
from nbgen.engine.structural_tag import Format, current, one_of, optional, sequence, text
from nbgen.engine.xgrammar_schema import enforceable
from nbgen.errors import InvalidRequest
from nbgen.messages import ToolOptions
from nbgen.sampling_params import SamplingParams

#: Between a thought and what follows it.
SPACE: Format = {"type": "regex", "pattern": r"[ \n]{0,4}"}
REMEDY = "leave out response_format and strict tools, and let tool_choice be auto or none"


def answer_grammar(
    answers: AnswerFormat, params: SamplingParams, tools: ToolOptions | None, opened: str | None
) -> str | None:
    """The structural tag for the answer to a request with this grammar, if any, and these tools; None where all goes.

    `opened` is how the prompt ends; None where thoughts are not wanted apart, and are not made room for. Raises
    InvalidRequest for tools that must be called in a way that is not known, and for a grammar that is none.
    """
    format = None if params.grammar is None else _of_option(*params.grammar)
    thought = None if opened is None else answers.thought
    if thought and thought.opening and format is not None:
        format = sequence(text(thought.opening), format)
    if tools is not None:
        format = _with_tools(answers, tools, format)
    if format is None or opened is None or thought is None:
        return _tag(format) if tools is not None and format else None
    begun = opened.rstrip().endswith(thought.before)
    begin = "" if begun else thought.before
    thinks: Format = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": thought.after}
    if thought.following:
        thinks = sequence(thinks, text(thought.following))
    space = [] if thought.following else [SPACE]
    return _tag(sequence(thinks if begun else optional(thinks), *space, format))


def _tag(format: Format) -> str:
    return json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)


def _with_tools(answers: AnswerFormat, tools: ToolOptions, format: Format | None) -> Format | None:
    """The calls that must come, or may in place of `format`; what a strict tool is called with, if it is."""
    must = tools.required or bool(tools.function)
    if not must and not tools.strict and format is None:
        return _guide(answers.calls, tools) if tools.guided and answers.calls else None
    if answers.calls is None or answers.calls.style is None:
        raise InvalidRequest(
            f"how this model writes calls is not known well enough to enforce it: {REMEDY}", field="tool_choice"
        )
    if must:
        return _calls(answers.calls, tools)
    if format is None:
        return _when_called(answers.calls, tools)
    return one_of(_calls(answers.calls, tools), format)


def _calls(calls: CallFormat, tools: ToolOptions) -> Format:
    """One call, or several where they may be and the template knows how."""
    tags = [
        {"type": "tag", "begin": name + calls.middle, "content": arguments, "end": ""}
        for name, arguments in _functions(calls, tools)
    ]
    several = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": calls.separator,
        "at_least_one": True,
        "stop_after_first": not (tools.parallel and calls.separator),
    }
    after = calls.after.rstrip()
    return sequence(text(calls.before.lstrip()), several, *([text(after)] if after else []))


def _when_called(calls: CallFormat, tools: ToolOptions) -> Format | None:
    """Any text, in which calls are as they should be."""
    before, after = calls.before.lstrip(), calls.after.rstrip()
    if not before or not (after or calls.style == "json"):  # where a call begins or ends could not be told
        return None
    tags = [
        {"type": "tag", "begin": before + name + calls.middle, "content": arguments, "end": after}
        for name, arguments in _functions(calls, tools)
    ]
    triggers = [tag["begin"] for tag in tags] if before == "[" else [before]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not tools.parallel}


def _guide(calls: CallFormat, tools: ToolOptions) -> Format | None:
    """The same where a call begins as nothing else does, and as far as what functions take can be enforced."""
    if calls.style in (None, STYLE) or not calls.before.partition("{")[0].strip(" \n["):
        return None
    return _when_called(calls, tools)


def _functions(calls: CallFormat, tools: ToolOptions) -> list[tuple[str, Format]]:
    """The name of each function that may be called, and what its arguments are like."""
    functions = [each["function"] for each in tools.tools if tools.function in ("", each["function"]["name"])]
    return [(each["name"], _arguments(calls, each, each["name"] in tools.strict)) for each in functions]


def _arguments(calls: CallFormat, function: dict[str, Any], strict: bool) -> Format:
    """All that a strict function takes; that of another as far as it can be enforced."""
    parameters: dict[str, Any] | None = function.get("parameters") or {"type": "object"}
    if strict:
        _check_strict(function["name"], parameters)
    else:
        parameters = _as_far_as_can_be(json.dumps(parameters))
    if calls.style != STYLE:
        style = {} if calls.style == "json" else {"style": calls.style}
        return {"type": "json_schema", "json_schema": parameters or {"type": "object"}, **style}
    if parameters is None or (arguments := python_arguments(parameters)) is None:
        raise InvalidRequest(
            f"this model calls tools in Python's syntax, in which the parameters of {function['name']!r} cannot be "
            f"enforced: {REMEDY}",
            field="tools",
        )
    return arguments


def _check_strict(name: str, parameters: Any) -> None:
    """Raises InvalidRequest for arguments that cannot be enforced, which names the function."""
    try:
        enforceable(parameters)
    except GrammarError as error:
        raise InvalidRequest(
            f"the parameters of the strict function {name!r} cannot be enforced: {error}", field="tools"
        ) from None


@lru_cache(maxsize=128)  # a conversation sends the same tools with each of its turns
def _as_far_as_can_be(parameters: str) -> dict[str, Any] | None:
    """The schema, or as much of it as can be enforced; None where that is no matter of single keywords."""
    schema: dict[str, Any] = json.loads(parameters)
    if can_be_enforced(schema):
        return schema
    return loose if can_be_enforced(loose := loosened(schema)) else None


def _of_option(kind: str, value: str) -> Format:
    """What a sampling option asks for, as a part of a structural tag."""
    try:
        check(Grammar(kind, value))
    except GrammarError as error:
        raise refusal(kind, error) from None
    match kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": {} if value == ANY_JSON else json.loads(value)}
        case "regex":
            return {"type": "regex", "pattern": value}
        case "ebnf":
            return {"type": "grammar", "grammar": value}
    return current(json.loads(value))["format"]
