"""A conversation in Python: each call is the next turn, and is sent with all turns before.

Knows turns; nothing of HTTP or displays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.media import as_text, media_parts
from nbgen.notebook.options import Options
from nbgen.notebook.request import chat_messages, question, sampling_options, system_turn
from nbgen.notebook.result import Result
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.shown_text import visible
from nbgen.notebook.signatures import STREAMED, takes_sampling
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.tools import Tools, chat_body
from nbgen.notebook.turns import ENDED, Turns, answered, markdown_of, named, shown, spoken

Ask = Callable[..., TextStream]
Said = Sequence[Mapping[str, Any]] | Turns


@takes_sampling(*STREAMED)
@short_traceback
def chat(
    system: str | None = None,
    *,
    messages: Said = (),
    schema: Any = None,
    **options: Unpack[Options],
) -> Conversation:
    """A conversation: `talk = nbgen.chat(); talk("Hello")` answers, and the next call remembers. See Conversation.

    `messages` continue an earlier conversation: they are what `talk.messages` or `to_openai()` gave, messages of
    OpenAI's API, another conversation, a chat panel or a Result. A `schema` holds for every answer: `result.value`.
    """
    sampling_options({name: value for name, value in options.items() if name not in STREAMED})
    chat_body(options.get("tools"), options.get("tool_choice"), options.get("template_options"))
    asked = {**options, "schema": schema} if schema is not None else options
    return Conversation(session.stream, system, asked, messages)


class Conversation(Turns):
    """`talk("…")` answers in the light of all turns before. A call that fails before any text comes adds no turn.

    Functions given as `tools` are called when the model calls them, and it gets their results, until it answers.
    """

    def __init__(
        self,
        ask: Ask,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        messages: Said = (),
    ) -> None:
        """`messages` are the earlier turns, or an object that has `turns`. Raises InvalidRequest for anything else."""
        self.messages: list[dict[str, Any]] = [*system_turn(system), *_said(messages)]
        if system and any(turn["role"] == "system" for turn in self.messages[1:]):
            raise InvalidRequest("the messages have a system prompt already: leave system= out", field="system")
        self.options = dict(options or {})
        self._tools = Tools(self.options.pop("tools", ()))
        self._ask = ask

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.messages

    @takes_sampling(*STREAMED)
    @short_traceback
    def __call__(self, text: str, *, schema: Any = None, **options: Unpack[Options]) -> Result:
        """The answer to `text`, with images, sounds and videos as in `nbgen.generate`; options hold for this turn.

        The object of a `schema` is the answer's `value`.
        """
        tools = Tools(options.pop("tools")) if "tools" in options else self._tools
        first = self.stream(text, schema=schema, tools=tools, **options)
        later = {**options, "tools": tools, **dict.fromkeys(("tool_choice", "images", "audio", "videos"))}
        for answer in tools.rounds(first, lambda _, results: self._send(results, later, schema)):
            for _ in answer:
                pass
        return answer.result

    @takes_sampling(*STREAMED)
    @short_traceback
    def stream(
        self,
        text: str,
        *,
        schema: Any = None,
        images: Any = None,
        audio: Any = None,
        videos: Any = None,
        **options: Any,
    ) -> TextStream:
        """Like calling it, but an iterator of text; the turn is kept when the answer has ended."""
        return self._send([question(text, media_parts(images, audio, videos))], options, schema)

    def undo(self) -> None:
        """Forget the last question and its answer."""
        while self.messages and self.messages[-1]["role"] in ("assistant", "tool"):
            self.messages.pop()
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def __copy__(self) -> Conversation:
        """A conversation that goes on by itself from here."""
        copied = object.__new__(type(self))
        copied.__dict__ |= {**self.__dict__, "messages": [*self.messages], "options": {**self.options}}
        return copied

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        last = as_text(self.messages[-1]["content"]) if self.messages else ""
        return f"<conversation of {len(self)} messages: {last[:60]!r}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        nothing = "(nothing has been said yet)"
        plain = named(self.turns, ([visible(as_text(spoken(turn)))] for turn in self.turns))
        return {"text/plain": plain or nothing, "text/markdown": markdown_of(self.turns, shown) or nothing}

    def _send(self, asked: list[dict[str, Any]], options: dict[str, Any], schema: Any) -> TextStream:
        """Ask with the conversation's options, where this turn has none of its own."""
        own = options if schema is None else {**options, "schema": schema}
        answer = self._ask(answered([*self.messages, *asked]), **{"tools": self._tools, **self.options, **own})
        answer.on_end = lambda result: self._keep(asked, result)
        return answer

    def _keep(self, asked: list[dict[str, Any]], result: Result) -> None:
        if result.text or result.finish_reason in ENDED:
            self.messages += [*asked, result.turn]


def _said(messages: Said) -> list[dict[str, Any]]:
    """The earlier turns as the API takes them."""
    turns = messages.turns if isinstance(messages, Turns) else messages
    if isinstance(turns, str):
        raise InvalidRequest('messages are a list of {"role": "user", "content": "…"} and the like', field="messages")
    return chat_messages(turns) if turns else []
