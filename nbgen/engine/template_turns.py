"""Renders chat turns with known marker texts, to learn what a template writes around them. Knows no tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

#: Renders messages and tools as text; the last argument says whether an answer is to begin. It may raise anything.
Render = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], str]
Turn = dict[str, Any]

#: A pattern for white space before what is searched. It scans a long run once, not again from each of its characters.
SPACES = r"(?:(?<!\s)\s*+)?"
ASK, ANSWER = "nbgen asks", "nbgen answers"


class TemplateTurns:
    """What a chat template writes around a question and after it, when these tools can be called."""

    def __init__(
        self, render: Render, tools: list[dict[str, Any]] | None = None, ends: Sequence[str] = (), thought_end: str = ""
    ) -> None:
        """`ends` are the texts of the model's end tokens; `thought_end` is the text that closes a thought."""
        self._render = render
        self._tools = tools or []
        self._ends = ends
        self.thought_end = thought_end

    def text(self, *turns: Turn, opens: bool = False) -> str:
        """The text of the turns after the question; "" if the template refuses them."""
        return self._around_question(turns, opens)[1]

    @cached_property
    def shown(self) -> str:
        """The text before the question, where the template describes the tools to the model."""
        return self._around_question((), opens=False)[0]

    def answer(self, turn: Turn) -> str:
        """The part of a turn that the model itself writes, without the turn's header and end, and without thoughts."""
        text = self.text(turn)
        text = text[len(_whole_tags(shared_start(text, self.header))) :]
        text = text[: len(text) - len(from_tag(shared_end(text, self._plain[1])))]
        for end in self._ends:
            text = text.partition(end)[0]
        return text.rpartition(self.thought_end)[2] if self.thought_end else text

    @cached_property
    def header(self) -> str:
        """The text that begins the model's turn."""
        return _whole_tags(shared_start(self.text(opens=True), self._plain[0]))

    @property
    def start(self) -> str:
        """The text between the header of the model's turn and its content."""
        return self._plain[0].removeprefix(self.header)

    @property
    def end(self) -> str:
        """The text that ends the model's turn."""
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
        """The text before and after the content of the model's turn."""
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
    """The text without an incomplete tag at its end."""
    cut = max(text.rfind("<"), text.rfind("["))
    return text[:cut] if cut > max(text.rfind(">"), text.rfind("]")) else text
