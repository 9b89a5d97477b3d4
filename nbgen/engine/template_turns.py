"""Turns of a chat as its template renders them, with marks in them that tell where things stand. Knows no tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

#: Renders messages and tools as text; the last argument says whether an answer is to begin. It may raise anything.
Render = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], str]
Turn = dict[str, Any]

#: White space before what is searched. A long run of it is gone through once, not from each of its characters on.
SPACES = r"(?:(?<!\s)\s*+)?"
ASK, ANSWER = "nbgen asks", "nbgen answers"


class TemplateTurns:
    """What a chat template writes after a question, where these tools are there to be called."""

    def __init__(
        self, render: Render, tools: list[dict[str, Any]] | None = None, ends: Sequence[str] = (), thought_end: str = ""
    ) -> None:
        """`ends` are the texts of the model's end tokens, `thought_end` what comes after a thought."""
        self._render = render
        self._tools = tools or []
        self._ends = ends
        self.thought_end = thought_end

    def text(self, *turns: Turn, opens: bool = False) -> str:
        """The turns as text; "" where the template refuses them."""
        return self._around_question(turns, opens)[1]

    @cached_property
    def shown(self) -> str:
        """What stands before the question: how the model is shown its tools."""
        return self._around_question((), opens=False)[0]

    def answer(self, turn: Turn) -> str:
        """What the model itself writes of a turn: without how turns begin and end, and without thoughts."""
        text = self.text(turn)
        text = text[len(_whole_tags(shared_start(text, self.header))) :]
        text = text[: len(text) - len(from_tag(shared_end(text, self._plain[1])))]
        for end in self._ends:
            text = text.partition(end)[0]
        return text.rpartition(self.thought_end)[2] if self.thought_end else text

    @cached_property
    def header(self) -> str:
        """How the model's turn begins."""
        return _whole_tags(shared_start(self.text(opens=True), self._plain[0]))

    @property
    def start(self) -> str:
        """What stands between how the model's turn begins and its text."""
        return self._plain[0].removeprefix(self.header)

    @property
    def end(self) -> str:
        """How the model's turn ends."""
        return self._plain[1]

    def _around_question(self, turns: Sequence[Turn], opens: bool) -> tuple[str, str]:
        try:
            text = self._render([{"role": "user", "content": ASK}, *turns], self._tools, opens)
        except Exception:  # a template may raise anything
            return "", ""
        before, asked, after = text.rpartition(ASK)
        return (before, after) if asked else ("", "")

    @cached_property
    def _plain(self) -> tuple[str, str]:
        """What stands before and after the text of a turn."""
        before, _, after = self.text({"role": "assistant", "content": ANSWER}).partition(ANSWER)
        return before, after


def shared_start(one: str, other: str) -> str:
    """The longest text that both begin with."""
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def shared_end(one: str, other: str) -> str:
    """The longest text that both end with."""
    return shared_start(one[::-1], other[::-1])[::-1]


def from_tag(text: str) -> str:
    """The text from its first whole tag on."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else ""


def to_tag(text: str) -> str:
    """The text up to the end of its last whole tag."""
    return text[: max(text.rfind(">"), text.rfind("]")) + 1]


def _whole_tags(text: str) -> str:
    """The text without a tag that only begins at its end."""
    cut = max(text.rfind("<"), text.rfind("["))
    return text[:cut] if cut > max(text.rfind(">"), text.rfind("]")) else text
