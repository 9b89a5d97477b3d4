"""Exports of a conversation: as a table, as OpenAI's messages, as a line of JSON, as Markdown.

A turn's content is text, or OpenAI's parts with images and sounds in them. Knows what a turn is; nothing of
where the conversation is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nbgen.notebook.data_frames import import_pandas
from nbgen.notebook.media import Content, as_text, text_of
from nbgen.notebook.shown_media import media_markdown
from nbgen.notebook.shown_text import as_markdown, as_typed

#: Finish reasons of a proper answer, which may be empty.
ENDED = ("stop", "length", "tool_calls")
#: The result of a call that nobody has made.
NO_RESULT = "no result"
_SPACE = re.compile(r"\s+")
#: Who speaks, by a turn's role.
NAMES = {"system": "System", "developer": "System", "user": "You", "assistant": "Model", "tool": "Tool"}


class Turns:
    """Exports of whatever has `turns`: a list of {"role", "content"}."""

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation, oldest first."""
        raise NotImplementedError

    def to_openai(self) -> list[dict[str, Any]]:
        """As the `messages` of OpenAI's API."""
        return [dict(turn) for turn in self.turns]

    def to_jsonl(self) -> str:
        """One line of JSON, `{"messages": […]}`, as fine-tuning takes it; with its line break."""
        return json.dumps({"messages": self.to_openai()}, ensure_ascii=False) + "\n"

    def to_df(self) -> Any:
        """As a pandas DataFrame with the columns `role` and `content`; words such as `[image]` stand for media."""
        pandas = import_pandas("to_df")
        rows = [{"role": turn["role"], "content": as_text(turn["content"])} for turn in self.turns]
        return pandas.DataFrame(rows, columns=["role", "content"])

    def to_markdown(self) -> str:
        """Each turn below its speaker's name, with small images and with players for sounds."""
        return markdown_of(self.turns, lambda turn: text_of(spoken(turn)))


def markdown_of(turns: Sequence[dict[str, Any]], write: Callable[[dict[str, Any]], str]) -> str:
    """Messages with their media in Markdown; `write` returns the text of each."""
    media = media_markdown(turns)
    return named(turns, ([pictures, write(turn)] for turn, pictures in zip(turns, media, strict=True)))


def shown(turn: dict[str, Any]) -> str:
    """A turn's text as Jupyter's Markdown: an answer is Markdown itself, anything else is shown as it was typed."""
    text = text_of(spoken(turn))
    return as_markdown(text) if turn["role"] == "assistant" else as_typed(text)


def spoken(turn: dict[str, Any]) -> Content:
    """A turn's content, followed by its function calls."""
    functions = [call["function"] for call in turn.get("tool_calls", ())]
    calls = [f"`{each['name']}({_unbroken(each.get('arguments', ''))})`" for each in functions]
    return "\n\n".join(filter(None, [as_text(turn["content"]), *calls])) if calls else turn["content"]


def _unbroken(arguments: str | Mapping[str, Any]) -> str:
    """Arguments as JSON on one line. JSON has line breaks only between its tokens, so none gets lost in a string."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _SPACE.sub(lambda found: " " if "\n" in found[0] or "\r" in found[0] else found[0], written)


def named(turns: Sequence[dict[str, Any]], parts: Iterable[list[str]]) -> str:
    """The parts of each message, below the name of its speaker."""
    said = ([f"**{NAMES[turn['role']]}**", *own] for turn, own in zip(turns, parts, strict=True))
    return "\n\n".join(part for own in said for part in own if part)


def openai_call(call: Mapping[str, str]) -> dict[str, Any]:
    """A call with its `id`, `name` and `arguments`, in the shape that a turn has."""
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}


def calls_of(turn: Mapping[str, Any]) -> list[dict[str, str]]:
    """The calls of a turn, each with its `id`, `name` and `arguments`."""
    return [{"id": call.get("id", ""), **call["function"]} for call in turn.get("tool_calls") or ()]


def answered(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns, with a result for calls that nobody has made: models and servers expect one for each call."""
    whole = []
    for place, turn in enumerate(turns, 1):
        whole.append(turn)
        if place == len(turns) or turns[place]["role"] != "tool":
            whole += [{"role": "tool", "tool_call_id": call["id"], "content": NO_RESULT} for call in calls_of(turn)]
    return whole
