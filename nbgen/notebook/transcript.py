"""A panel's content as an output of its own, to be read where there is no kernel and no widget.

Markdown without markup from the model: nothing in it runs, and nothing in it is fetched. The images and sounds that
a person sent are in it as small pictures and players.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from nbgen.notebook.display import Output, in_report
from nbgen.notebook.media import as_text
from nbgen.notebook.result import Result
from nbgen.notebook.shown_media import media_markdown
from nbgen.notebook.shown_text import as_markdown, as_source, as_typed, counted, visible
from nbgen.notebook.turns import NAMES, shown, spoken

#: No HTML: front ends render Markdown in the same way where the notebook is not trusted.
Bundle = dict[str, str]
#: So many of the newest messages are drawn as in the panel, older ones are shown as plain text: pages draw the whole
#: transcript anew with every answer, and take milliseconds for each message.
DRAWN = 100


class Transcript:
    """Displays one output and changes it later, from any cell or thread. In a report, which shows no widget, it is not
    folded: paper has no way to open it.
    """

    def __init__(self) -> None:
        self._output = Output()
        self._open = False
        self._written: Bundle = _EMPTY

    @property
    def shown(self) -> bool:
        return self._output.shown

    @property
    def written(self) -> Bundle:
        """What it shows now."""
        return self._written

    @property
    def checksum(self) -> int:
        """Of its Markdown in UTF-8, Adler-32 (RFC 1950): by this a page knows whether it has the same."""
        return zlib.adler32(self._written["text/markdown"].encode("utf-8", "replace"))

    def show(self) -> None:
        """Add one more output with the content so far; front ends change it together with the earlier ones."""
        self._open = in_report()
        self._output.add(self._written)

    def update(self, written: Bundle) -> None:
        """Show this wherever `show` was called."""
        if written != _EMPTY:
            self._change(written)

    def clear(self) -> None:
        """Show nothing any more. An empty `update` does not: the server may just have forgotten the conversation."""
        self._change(_EMPTY)

    def _change(self, written: Bundle) -> None:
        if self._open:
            written = written | {"text/markdown": written["text/markdown"].replace("<details>", "<details open>", 1)}
        if self.shown:
            self._written = written
            self._output.show(written)


_EMPTY: Bundle = {"text/plain": "", "text/markdown": ""}


def bundle(messages: Sequence[dict[str, Any]]) -> Bundle:
    """A conversation."""
    if not messages:
        return _EMPTY
    head = f"Transcript: {counted(sum(turn['role'] != 'system' for turn in messages), 'message')}"
    parts = [*_older(messages[:-DRAWN]), *_turns(messages[-DRAWN:])]
    return {"text/plain": _joined(messages), "text/markdown": _folded(head, parts)}


def comparison(asked: Sequence[dict[str, Any]], answers: Sequence[tuple[str, Result]]) -> Bundle:
    """The question's messages, and each answer below its label."""
    if not any(result.text or result.finish_reason for _, result in answers):
        return _EMPTY
    plain = [f"{label}: {visible(result.text)}" + _noted(" ({})", result.caption) for label, result in answers]
    parts = [
        f"**{as_typed(label)}**\n\n{as_markdown(result.text)}" + _noted("\n\n*({})*", as_typed(result.caption))
        for label, result in answers
    ]
    head = f"Comparison: {counted(len(answers), 'answer')}"
    return {
        "text/plain": "\n\n".join([*map(_plain, asked), *plain]),
        "text/markdown": _folded(head, [*_turns(asked), *parts]),
    }


def continuation(text: str) -> Bundle:
    """A text that was continued, shown as it was written, as its panel does."""
    if not text:
        return _EMPTY
    return {"text/plain": visible(text), "text/markdown": _folded("Text", [as_typed(text)])}


def _noted(form: str, caption: str) -> str:
    return form.format(caption) if caption else ""


def _folded(head: str, parts: Sequence[str]) -> str:
    return "\n\n".join([f"<details><summary>{head}</summary>", *parts, "</details>"])


def _older(turns: Sequence[dict[str, Any]]) -> list[str]:
    """The older turns, folded within the fold: pages measure formulas in a fold, but not in a fold within it."""
    words = f"The first {len(turns)}, as they were written"
    return [_folded(words, [as_source(_joined(turns))])] if turns else []


def _joined(turns: Sequence[dict[str, Any]]) -> str:
    return "\n\n".join(map(_plain, turns))


def _plain(turn: dict[str, Any]) -> str:
    return f"{NAMES[turn['role']]}: {visible(as_text(spoken(turn)))}"


def _turns(turns: Sequence[dict[str, Any]]) -> list[str]:
    return [_turn(turn, media) for turn, media in zip(turns, media_markdown(turns), strict=True)]


def _turn(turn: dict[str, Any], media: str) -> str:
    text = "\n\n".join(filter(None, (media, shown(turn))))
    if turn["role"] != "assistant":
        text = "\n".join(f"> {line}" for line in text.split("\n"))
    return f"**{NAMES[turn['role']]}**\n\n{text}"
