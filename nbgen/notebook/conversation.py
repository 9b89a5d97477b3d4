"""A conversation in Python: each call is the next turn, and what was said before goes with it.

Knows turns; nothing of HTTP or displays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbgen.notebook.result import Result, text_bundle
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.turns import Turns

Ask = Callable[..., TextStream]


class Conversation(Turns):
    """`talk("…")` answers in the light of all turns before. One that failed before any text came is no turn."""

    def __init__(self, ask: Ask, system: str | None = None, options: dict[str, Any] | None = None) -> None:
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
        self.options = dict(options or {})
        self._ask = ask

    @property
    def turns(self) -> list[dict[str, str]]:
        return self.messages

    def __call__(self, text: str, **options: Any) -> Result:
        """The answer to `text`; options hold for this turn only."""
        for _ in (answer := self.stream(text, **options)):
            pass
        return answer.result

    def stream(self, text: str, **options: Any) -> TextStream:
        """As calling it, but an iterator of text; the turn is kept when the answer has ended."""
        asked = {"role": "user", "content": text}
        answer = self._ask([*self.messages, asked], **{**self.options, **options})
        answer.on_end = lambda result: self._keep(asked, result)
        return answer

    def undo(self) -> None:
        """Forget the last question and its answer."""
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        last = self.messages[-1]["content"] if self.messages else ""
        return f"<conversation of {len(self)} messages: {last[:60]!r}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return text_bundle(self.to_markdown() or "(nothing has been said yet)")

    def _keep(self, asked: dict[str, str], result: Result) -> None:
        if result.text or result.finish_reason in ("stop", "length"):
            self.messages += [asked, {"role": "assistant", "content": result.text}]
