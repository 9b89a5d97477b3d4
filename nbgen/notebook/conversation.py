"""A conversation in Python: each call is the next turn, and what was said before goes with it.

Knows turns; nothing of HTTP or displays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from nbgen.notebook.media import as_text, media_parts
from nbgen.notebook.options import Options
from nbgen.notebook.request import question
from nbgen.notebook.result import Result
from nbgen.notebook.shown_text import visible
from nbgen.notebook.signatures import STREAMED, takes_sampling
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.tools import Tools
from nbgen.notebook.turns import ENDED, Turns, answered, markdown_of, named, shown, spoken

Ask = Callable[..., TextStream]


class Conversation(Turns):
    """`talk("…")` answers in the light of all turns before. One that failed before any text came is no turn.

    Functions given as `tools` are called as the model wants, and it is told what they return, until it answers.
    """

    def __init__(self, ask: Ask, system: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self.options = dict(options or {})
        self._tools = Tools(self.options.pop("tools", ()))
        self._ask = ask

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.messages

    @takes_sampling(*STREAMED)
    def __call__(self, text: str, **options: Unpack[Options]) -> Result:
        """The answer to `text`, with images, sounds and videos as in `nbgen.generate`; options hold for this turn."""
        tools = Tools(options.pop("tools")) if "tools" in options else self._tools
        first = self.stream(text, tools=tools, **options)
        later = {name: value for name, value in options.items() if name not in ("images", "audio", "videos")}
        later |= {"tools": tools, "tool_choice": None}
        for answer in tools.rounds(first, lambda _, results: self._send(results, later)):
            for _ in answer:
                pass
        return answer.result

    @takes_sampling(*STREAMED)
    def stream(
        self, text: str, *, images: Any = None, audio: Any = None, videos: Any = None, **options: Any
    ) -> TextStream:
        """As calling it, but an iterator of text; the turn is kept when the answer has ended."""
        return self._send([question(text, media_parts(images, audio, videos))], options)

    def undo(self) -> None:
        """Forget the last question and its answer."""
        while self.messages and self.messages[-1]["role"] in ("assistant", "tool"):
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        last = as_text(self.messages[-1]["content"]) if self.messages else ""
        return f"<conversation of {len(self)} messages: {last[:60]!r}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        nothing = "(nothing has been said yet)"
        plain = named(self.turns, ([visible(as_text(spoken(turn)))] for turn in self.turns))
        return {"text/plain": plain or nothing, "text/markdown": markdown_of(self.turns, shown) or nothing}

    def _send(self, asked: list[dict[str, Any]], options: dict[str, Any]) -> TextStream:
        answer = self._ask(answered([*self.messages, *asked]), **{"tools": self._tools, **self.options, **options})
        answer.on_end = lambda result: self._keep(asked, result)
        return answer

    def _keep(self, asked: list[dict[str, Any]], result: Result) -> None:
        if result.text or result.finish_reason in ENDED:
            self.messages += [*asked, result.turn]
