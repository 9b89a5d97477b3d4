"""The grammar of an answer that calls tools, or that thinks before it follows a grammar: a structural tag of xgrammar.

Made from the texts that a chat template writes around calls and thoughts. Knows neither tokens nor back ends.
"""

from __future__ import annotations

import json
from typing import Any

from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.argument_grammar import STYLE
from nbgen.engine.call_arguments import REMEDY, arguments
from nbgen.engine.call_format import CallFormat
from nbgen.engine.certain_calls import NO_BEGINS, CallBegins
from nbgen.engine.grammar import Grammar, GrammarError, refusal
from nbgen.engine.grammar_limits import parsed
from nbgen.engine.marked_grammar import MARKED
from nbgen.engine.structural_tag import Format, current, one_of, optional, sequence, text
from nbgen.engine.template_turns import from_tag, shared_end
from nbgen.errors import InvalidRequest
from nbgen.messages import ToolOptions
from nbgen.sampling_params import SamplingParams

#: Between a thought and what follows it.
SPACE: Format = {"type": "regex", "pattern": r"[ \n]{0,4}"}


def answer_grammar(
    answers: AnswerFormat,
    params: SamplingParams,
    tools: ToolOptions | None,
    opened: str | None,
    *,
    must_think: bool = False,
) -> str | None:
    """The structural tag for an answer by these params' grammar, if any, and these tools; None if any text is allowed.

    `opened` is the prompt's end; None if thoughts are not wanted: then the tag allows none. With `must_think` it begins
    with one. Raises InvalidRequest for tools that must be called in an unknown format, and for an invalid grammar.
    """
    format = None if params.grammar is None else _of_option(*params.grammar)
    thought = None if opened is None else answers.thought
    if thought and thought.opening and format is not None:
        format = sequence(text(thought.opening), format)
    if tools is not None:
        format = _with_tools(answers, tools, format)
    if format is None or opened is None or thought is None:
        return _tag(format) if tools is not None and format else None
    begun = thought.begun(opened)
    begin = "" if begun else thought.before
    thinks: Format = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": thought.after}
    if thought.following:
        thinks = sequence(thinks, text(thought.following))
    space = [] if thought.following else [SPACE]
    return _tag(sequence(thinks if begun or must_think else optional(thinks), *space, format))


def certain_begins(answers: AnswerFormat, params: SamplingParams, tools: ToolOptions) -> CallBegins:
    """The beginnings after which the tag that `answer_grammar` made of the same options enforces a call.

    There are none if the answer may follow another grammar instead, in which the same text need not be a call.
    """
    calls = answers.calls
    if calls is None or calls.style != "json" or (params.grammar and not _must_call(tools)):
        return NO_BEGINS
    ends = {each["name"] + calls.middle: each["name"] for each in _allowed(tools)}
    before, between = calls.before.lstrip(), calls.separator if _must_call(tools) and tools.parallel else ""
    again = from_tag(shared_end(before, between))  # each call has tags of its own
    listed = any(each.get("transform_each") for each in calls.fields.values())
    opening, following = (again or before, before), (between,) if listed and not again else ()
    return CallBegins(
        {begin + end: name for begin in opening for end, name in ends.items()},
        {begin + end: name for begin in following for end, name in ends.items() if between},
    )


def _must_call(tools: ToolOptions) -> bool:
    return tools.required or bool(tools.function)


def _tag(format: Format) -> str:
    return json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)


def _with_tools(answers: AnswerFormat, tools: ToolOptions, format: Format | None) -> Format | None:
    """The calls that are required, or allowed in place of `format`, or enforced only where a strict tool is called."""
    must = _must_call(tools)
    if not must and not tools.strict and format is None:
        guides = tools.guided or not tools.parallel  # without a grammar that ends the calls, the parser ends them
        return _guide(answers.calls, tools) if guides and answers.calls else None
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
    """One call, or several if they are allowed and the template can write several."""
    tags = [
        {"type": "tag", "begin": name + calls.middle, "content": content, "end": ""}
        for name, content in _functions(calls, tools)
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
    """Any text in which calls, if any, are valid."""
    before, after = calls.before.lstrip(), calls.after.rstrip()
    if not before or not (after or calls.style == "json"):  # the beginning or end of a call could not be recognized
        return None
    tags = [
        {"type": "tag", "begin": before + name + calls.middle, "content": content, "end": after}
        for name, content in _functions(calls, tools)
    ]
    triggers = [tag["begin"] for tag in tags] if before == "[" else [before]
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not tools.parallel}


def _guide(calls: CallFormat, tools: ToolOptions) -> Format | None:
    """The same, with arguments enforced as far as possible; None if calls have no unmistakable beginning.

    None also for syntaxes that no back end knows: these enforce a function's parameters fully or not at all.
    """
    if (calls.style or STYLE).startswith((STYLE, MARKED)) or not calls.before.partition("{")[0].strip(" \n["):
        return None
    return _when_called(calls, tools)


def _functions(calls: CallFormat, tools: ToolOptions) -> list[tuple[str, Format]]:
    """The name of each function that may be called, and the format of its arguments."""
    strict = tools.strict
    return [(each["name"], arguments(each, calls.style, strict=each["name"] in strict)) for each in _allowed(tools)]


def _allowed(tools: ToolOptions) -> list[dict[str, Any]]:
    """The functions that may be called."""
    return [each["function"] for each in tools.tools if tools.function in ("", each["function"]["name"])]


def _of_option(kind: str, value: str) -> Format:
    """A sampling option's grammar as a part of a structural tag. It is checked when that is compiled."""
    grammar = Grammar(kind, value)
    try:
        match kind:
            case "json_schema":
                return {"type": "json_schema", "json_schema": parsed(grammar)}
            case "regex":
                return {"type": "regex", "pattern": value}
            case "ebnf":
                return {"type": "grammar", "grammar": value}
        return current(parsed(grammar))["format"]
    except GrammarError as error:
        raise refusal(kind, error) from None
