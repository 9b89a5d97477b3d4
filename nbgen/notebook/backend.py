"""The base of the dialects: how to ask servers other than nbgen, and how to read their answers.

Pure: a dialect turns the body of a run into a call, and the events that answer it into those of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from nbgen import sse
from nbgen.errors import InvalidRequest
from nbgen.notebook.client import Event
from nbgen.notebook.connection import Call


class Reader(Protocol):
    """Reads one answer."""

    def feed(self, event: sse.Event) -> list[Event]:
        """The run's events that one server-sent event means."""

    def end(self) -> list[Event]:
        """The events to add when the stream ends; none if the answer is not whole."""

    def done(self, reason: Any) -> list[Event]:
        """The final events; `reason` is a word or an object with a `type`."""


class Backend(Protocol):
    """A server's dialect: `kind` is its name in programs. `model` is the name under which it serves the model."""

    name: str
    kind: str
    model: str

    def __init__(self, model: str) -> None: ...

    def run(self, body: Mapping[str, Any]) -> Call:
        """The call that starts a run. Raises InvalidRequest for options that this dialect does not have."""

    def reader(self) -> Reader:
        """A reader for one answer."""


class Words:
    """The part that readers share: counts a run's tokens so far, and holds why it ended."""

    def __init__(self) -> None:
        self._usage: dict[str, int] = {}
        self._tokens = 0
        self._reason: Any = None

    def end(self) -> list[Event]:
        """The answer is whole if a reason for its end has come."""
        return self.done(self._reason) if self._reason else []

    def delta(self, text: str, tokens: int = 1, index: int = 0, reasoning: str = "") -> list[Event]:
        """The event for new text or reasoning. Raises TypeError for wrong types."""
        if not (isinstance(text, str) and isinstance(reasoning, str) and isinstance(index, int)):
            raise TypeError
        if not text and not reasoning:
            return []
        self._tokens += tokens
        more = {"reasoning": reasoning} if reasoning else {}
        return [("delta", {"text": text, "tokens": tokens, "index": index, **more})]

    def done(self, reason: Any) -> list[Event]:
        """The final events; `reason` is a word or an object with a `type`."""
        kind = reason if isinstance(reason, Mapping) else {"type": reason or "stop"}
        usage = self._usage or {"completion_tokens": self._tokens}
        return [("done", {"finish_reason": dict(kind), "usage": usage})]

    def error(self, error: Any) -> list[Event]:
        """The event for an error, in the server's own words."""
        fields = error if isinstance(error, Mapping) else {"message": str(error)}
        code = fields.get("code")
        message = str(fields.get("message", "the server broke off"))
        return [("error", {"error": {"message": message, "code": code if isinstance(code, int) else 500}})]

    def count(self, numbers: Mapping[str, Any]) -> None:
        """Take over the counts of prompt and completion tokens."""
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        self._usage |= {name: int(numbers[name]) for name in names if numbers.get(name) is not None}


def in_its_words(params: Mapping[str, Any], names: Mapping[str, str], dialect: str) -> dict[str, Any]:
    """The options under the dialect's own names. Raises InvalidRequest for one that the dialect does not have."""
    if unknown := [name for name in params if name not in names]:
        raise _unsaid(unknown, dialect)
    return {names[name]: value for name, value in params.items()}


def refuse(body: Mapping[str, Any], names: Iterable[str], dialect: str) -> None:
    """Raise InvalidRequest for a run that has one of these options, which the dialect does not have."""
    if given := [name for name in names if body.get(name)]:
        raise _unsaid(given, dialect)


def _unsaid(options: Iterable[str], dialect: str) -> InvalidRequest:
    return InvalidRequest(f"a server of {dialect} has no option for {', '.join(options)}")
