"""What one run produced, and how it shows itself in a terminal and in a notebook.

Knows nothing of how the text arrived.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from nbgen.errors import InvalidAnswer
from nbgen.notebook.data_frames import import_pandas
from nbgen.notebook.media import Part, text_of, with_media
from nbgen.notebook.schema import Schema
from nbgen.notebook.short_traceback import short_traceback, shortened
from nbgen.notebook.shown_media import media_html, media_markdown
from nbgen.notebook.shown_text import as_typed, counted, text_bundle, visible
from nbgen.notebook.table import html_table
from nbgen.notebook.turns import Turns, calls_of, openai_call, spoken
from nbgen.sampling_params import DEFAULT_NEW_TOKENS


@dataclass(repr=False)
class Result(Turns):
    """The text of an answer with its numbers. `str(result)` is the text, `result.value` the object of a schema.

    `reasoning` is what the model thought first, where it marks its thoughts; `tool_calls` are the functions that it
    calls, each with `id`, `name` and `arguments` (JSON).

    `finish_reason` is "stop", "length", "abort" (somebody stopped it; the text is what had come) or "error".
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    #: What went wrong, in words.
    error: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    model: str | None = None
    #: Tells the model, with its adapter, from others of the same name; empty where the server gives no identity.
    identity: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    #: The request: messages, or else `prompt`, a text that was continued as it stood.
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    #: Images and sounds sent with `prompt`; those of `messages` are in the messages.
    media: list[Part] = field(default_factory=list)
    schema: Schema | None = None
    #: The further samples of `n`.
    others: list[str] = field(default_factory=list)

    @classmethod
    def of_turn(
        cls, turn: Mapping[str, Any], params: dict[str, Any], messages: list[dict[str, Any]] | None = None
    ) -> Result:
        """The answer in a turn of a server's chat."""
        reason = turn.get("finish_reason") or {}
        return cls(
            text=turn.get("content", ""),
            reasoning=turn.get("reasoning", ""),
            tool_calls=calls_of(turn),
            finish_reason=reason.get("type") or ("error" if turn.get("error") else None),
            error=turn.get("error"),
            usage=dict(turn.get("usage") or {}),
            ttft_s=turn.get("ttft_s"),
            tokens_per_s=turn.get("tokens_per_s"),
            params=params,
            messages=messages,
        )

    @property
    def texts(self) -> list[str]:
        """Every sample of `n`, this one first."""
        return [self.text, *self.others]

    def add_other(self, index: int, text: str) -> None:
        """Append text to a further sample; `index` counts from 1."""
        self.others += [""] * (index - len(self.others))
        self.others[index - 1] += text

    def clear(self) -> None:
        """Forget the answer, but not the request."""
        self.text, self.reasoning, self.tool_calls, self.others, self.usage = "", "", [], [], {}
        self.finish_reason = self.error = self.ttft_s = self.tokens_per_s = None

    def let_go(self) -> None:
        """Forget the request, with its images and sounds, but not the answer."""
        self.messages, self.prompt, self.media = None, None, []

    def __str__(self) -> str:
        return self.text

    def __format__(self, form: str) -> str:
        return format(self.text, form)

    def __eq__(self, other: object) -> bool:
        """Equal results have all fields equal; a str equals a result with this text."""
        if isinstance(other, str):
            return self.text == other
        return self.to_dict() == other.to_dict() if isinstance(other, Result) else NotImplemented

    def __hash__(self) -> int:
        """The hash of its text, which it equals, so that dictionaries and sets of texts find it."""
        return hash(self.text)

    def __contains__(self, part: str) -> bool:
        return part in self.text

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(Result, name):
                return self.__getattribute__(name)  # raises what a property has raised
            meant = f"; its text has: .text.{name}" if hasattr(str, name) else ""
            raise shortened(AttributeError(f"'Result' object has no attribute {name!r}{meant}"))

    def __repr__(self) -> str:
        start = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return f"Result({start!r}, {self.caption or self.finish_reason or 'still to come'})"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "schema"}

    @property
    @short_traceback
    def value(self) -> Any:
        """The typed object of the schema that was asked for. Raises InvalidAnswer if the text is not one."""
        if self.schema is None:
            raise InvalidAnswer("this answer was asked for without a schema")
        if self.finish_reason in ("length", "abort", "error"):
            raise InvalidAnswer(f"the answer ended before it was whole ({self.caption}){self._advice()}")
        return self.schema.parse(self.text)

    @property
    def _limit(self) -> int | None:
        """The max_new_tokens that cut the answer off; None where the context was full, as far as this result tells."""
        most = self.params.get("max_new_tokens", DEFAULT_NEW_TOKENS)
        return most if most is not None and self.usage.get("completion_tokens", most) >= most else None

    def _advice(self) -> str:
        if self.finish_reason != "length" or self._limit is not None:
            return ""
        return ": a shorter prompt or a schema with limits (maxLength, maxItems) leaves room"

    @property
    def _ending(self) -> str | None:
        """Why it ended, in words; None where the model ended it."""
        if self.finish_reason == "length":
            limit = self._limit
            return "cut off at the context's end" if limit is None else f"cut off at max_new_tokens={limit}"
        if self.finish_reason in ("stop", "tool_calls"):
            return None
        return "stopped" if self.finish_reason == "abort" else self.error or self.finish_reason

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The question and the answer, as messages."""
        asked = self.messages
        if asked is None:
            asked = with_media([{"role": "user", "content": self.prompt or ""}], self.media)
        return [*asked, self.turn]

    @property
    def turn(self) -> dict[str, Any]:
        """The answer as a message."""
        calls = [openai_call(call) for call in self.tool_calls]
        return {"role": "assistant", "content": self.text, **({"tool_calls": calls} if calls else {})}

    def to_df(self) -> Any:
        """A pandas DataFrame with a row for each sample: its text, why the first ended, and the numbers of all."""
        pandas = import_pandas("to_df")
        return pandas.DataFrame([{**self.row(), "text": text} for text in self.texts])

    def row(self) -> dict[str, Any]:
        """The columns of this answer in a table of many."""
        numbers = {name: self.usage.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        end = {"ttft_s": self.ttft_s, "error": self.error}
        return {"text": self.text, "finish_reason": self.finish_reason, **numbers, **end}

    @property
    def caption(self) -> str:
        """One line of numbers: tokens, seconds to the first one, tokens per second, why it ended, how many more."""
        tokens = self.usage.get("completion_tokens")
        parts = [
            None if tokens is None else counted(tokens, "token"),
            None if self.ttft_s is None else f"{_duration(self.ttft_s)} to first token",
            None if self.tokens_per_s is None else f"{self.tokens_per_s:.0f} tokens/s",
            self._ending,
            f"{len(self.others)} more in .texts" if self.others else None,
        ]
        return " · ".join(part for part in parts if part)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        bundle, metadata = self.bundle()
        if self.others or self.finish_reason not in (None, "stop", "tool_calls"):
            bundle["text/plain"] += f"\n({visible(self.caption)})"
            bundle["text/markdown"] += f"\n\n*({as_typed(self.caption)})*"
            if "text/html" in bundle:
                bundle["text/html"] += f"<p>({html.escape(self.caption)})</p>"
        return bundle, metadata

    def bundle(self) -> tuple[dict[str, str], dict[str, Any]]:
        """MIME bundle and metadata for a display that has the line of numbers below it."""
        facts = {"model": self.model, "params": self.params, "usage": self.usage, "finish_reason": self.finish_reason}
        bundle = text_bundle(text_of(spoken(self.turn)))
        asked = "\n\n".join(filter(None, media_markdown(self.turns)))
        if asked:
            bundle["text/markdown"] = f"{asked}\n\n{bundle['text/markdown']}"
        return bundle | self._table(), {"nbgen": facts}

    def _table(self) -> dict[str, str]:
        try:
            return {"text/html": media_html(self.turns) + html_table(self.value)}
        except InvalidAnswer:
            return {}


def _duration(seconds: float) -> str:
    """Seconds in words; less than a hundredth as milliseconds."""
    return f"{max(1, round(1000 * seconds))} ms" if seconds < 0.01 else f"{seconds:.2f} s"
