"""Python functions that a model may call: described to it by their signatures, called with its arguments.

Follows OpenAI's API reference in how tools, calls and results look. Knows neither server nor model.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from typing import Any, get_type_hints

from nbgen.errors import InvalidRequest
from nbgen.notebook.json_value import json_text
from nbgen.notebook.request import in_json
from nbgen.notebook.result import Result
from nbgen.notebook.schema import described, read_as
from nbgen.notebook.task_thread import TaskThread
from nbgen.notebook.text_stream import TextStream

#: Asks the model again, given its answer and messages with the results of the functions that the answer called.
Ask = Callable[[Result, list[dict[str, Any]]], TextStream]
#: A call by its id, its function's name and its arguments as JSON.
Call = Mapping[str, str]
#: Most answers to one question; calls of the last one are not made.
MAX_ROUNDS = 16
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tools:
    """What was given as `tools=`: functions of the notebook, and tools as OpenAI's JSON, which nobody here can call."""

    def __init__(self, given: Any = ()) -> None:
        """Raises InvalidRequest for any other value, and for functions that cannot be described."""
        self._functions: dict[str, _Function] = {}
        self.json: list[dict[str, Any]] = []
        for each in _several(given):
            if callable(each):
                function = _Function(each)
                if function.name in self._functions:
                    raise InvalidRequest(f"two tools are called {function.name}: rename one", field="tools")
                self._functions[function.name] = function
                self.json.append(function.json)
            elif isinstance(each, Mapping):
                self.json.append(dict(each))
            else:
                raise InvalidRequest(
                    f"a tool is a function, or a dict as OpenAI has it; got {each!r:.80}", field="tools"
                )

    @property
    def nameless(self) -> bool:
        """Whether there is a lambda, which no model can call by name."""
        return "<lambda>" in self._functions

    def rounds(self, answer: TextStream, ask: Ask) -> Iterator[TextStream]:
        """Yields the answer, to be read, then calls its functions and yields the answer that `ask` gives, and so on."""
        for left in reversed(range(MAX_ROUNDS)):
            yield answer
            if not left or not (results := self.results(answer.result)):
                return
            answer = ask(answer.result, results)

    def results(self, result: Result) -> list[dict[str, Any]]:
        """Messages with the results of the functions that an answer calls; none if it calls unknown ones."""
        if result.finish_reason == "abort" or self.unknown(result.tool_calls):
            return []
        return self.call(result.tool_calls)

    def unknown(self, calls: Sequence[Call]) -> list[str]:
        """The names in these calls that are none of these functions."""
        return list(dict.fromkeys(call["name"] for call in calls if call["name"] not in self._functions))

    def call(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Call these functions, which must be known. Returns messages with their results."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": self._functions[call["name"]](call["arguments"])}
            for call in calls
        ]

    def asynchronous(self, calls: Sequence[Call]) -> bool:
        """Whether all these functions, which must be known, are coroutine functions."""
        return all(self._functions[call["name"]].asynchronous for call in calls)


def chat_body(tools: Any, choice: Any = None, template_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The part of a run's body with tools and template options, as far as they are given."""
    box = tools if isinstance(tools, Tools) else Tools(tools)
    if box.nameless:
        raise InvalidRequest("a lambda has no name that a model could call it by: write def name(…)", field="tools")
    if isinstance(choice, str) and choice not in ("auto", "required", "none"):
        choice = {"type": "function", "function": {"name": choice}}
    if not isinstance(template_options or {}, Mapping):
        words = f'template_options are a dict, as {{"enable_thinking": False}}, got {type(template_options).__name__}'
        raise InvalidRequest(words, field="template_options")
    body = {"tools": box.json, "tool_choice": choice, "template_options": template_options}
    return {name: in_json(value, name) for name, value in body.items() if value}


def _several(given: Any) -> Iterable[Any]:
    """One tool, several, or none."""
    if callable(given) or not isinstance(given, Iterable | None) or isinstance(given, Mapping | str):
        return [given]
    return given or ()


class _Function:
    """A function with the type of its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        plain, own = function, {}
        if isinstance(function, functools.partial):  # may have attributes of its own, such as a name
            plain, own = function.func, vars(function)
            function = functools.partial(plain, *function.args, **function.keywords)
        written = plain if hasattr(plain, "__name__") else type(plain).__call__  # of an object that can be called
        self.name = own.get("__name__", getattr(plain, "__name__", type(plain).__name__))
        self.asynchronous = inspect.iscoroutinefunction(written)
        self._words = inspect.cleandoc(own.get("__doc__") or inspect.getdoc(plain) or "")
        arguments = make_dataclass("Arguments", _fields(function, written, self.name), kw_only=True)
        self._names = [each.name for each in fields(arguments)]
        try:
            self._arguments, schema = described(arguments)
            self._schema = in_json(schema, "the schema of its parameters")
            said, told = {each.name: _said(each.type) for each in fields(arguments)}, self._schema["properties"]
            told |= {name: {**said.get(name, {}), **schema} for name, schema in told.items()}
        except (TypeError, InvalidRequest) as error:
            raise InvalidRequest(f"the tool {self.name} cannot be described: {error}", field="tools") from None

    def __reduce__(self) -> Any:
        return _Function, (self._function,)

    @property
    def json(self) -> dict[str, Any]:
        """As OpenAI's API has it. The description is the docstring."""
        schema = {name: value for name, value in self._schema.items() if name != "title"}
        told = {"name": self.name, "description": self._words, "parameters": schema}
        return {"type": "function", "function": {name: value for name, value in told.items() if value}}

    def __call__(self, arguments: str) -> str:
        """Call it with arguments in JSON. Returns its result, or its error for the model to read, as text."""
        try:
            given = read_as(arguments or "{}", self._arguments, strict=False)
            value = _waited_for(self._function(**{name: getattr(given, name) for name in self._names}))
            return value if isinstance(value, str) else json_text(value)
        except Exception as error:  # the model may do better the next time
            return f"{type(error).__name__}: {error}"


def _waited_for(value: Any) -> Any:
    """The value, or what an awaitable returns: run on a thread, for the kernel's own event loop is running already."""
    if not inspect.isawaitable(value):
        return value

    returned: list[Any] = []

    async def wait() -> None:
        returned.append(await value)

    thread = TaskThread(wait)
    try:
        thread.start()
        thread.wait()
    except BaseException:  # Ctrl-C
        thread.cancel()
        raise
    if not returned:
        raise thread.failure or asyncio.CancelledError
    return returned[0]


def _fields(function: Callable[..., Any], written: Callable[..., Any], name: str) -> list[Any]:
    """The parameters that a `partial` does not bind, each with its type and its default."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        parameters, hints = inspect.signature(function).parameters, get_type_hints(written, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidRequest(f"the tool {name} cannot be described: {error}", field="tools") from None
    if "self" in parameters:
        raise InvalidRequest(f"the tool {name} is a method of a class: give it of an object", field="tools")
    told = [each for each in parameters.values() if each.name not in bound]
    if odd := [each.name for each in told if each.kind not in _BY_NAME]:
        raise InvalidRequest(
            f"the tool {name} must name its parameters: {', '.join(odd)} cannot be told", field="tools"
        )
    return [
        (each.name, hints.get(each.name, Any), *([] if each.default is each.empty else [_default(each.default)]))
        for each in told
    ]


def _said(type: Any) -> dict[str, str]:
    """The description from the strings beside a parameter's type, as in `Annotated[str, "the city"]`."""
    words = " ".join(each for each in getattr(type, "__metadata__", ()) if isinstance(each, str))
    return {"description": words} if words else {}


def _default(value: Any) -> Any:
    """A default as dataclasses take it: a mutable value is copied for each call."""
    return field(default=value) if isinstance(value, Hashable) else field(default_factory=lambda: copy.copy(value))
