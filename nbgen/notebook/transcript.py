"""A conversation as an output of its own: what is left to read where there is no kernel and no widget.

Markdown without markup of the model's: nothing in it runs, and nothing in it is fetched. The images and sounds that
a person sent are in it as small pictures and players.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from IPython.display import display

from nbgen.notebook.media import as_text
from nbgen.notebook.shown_media import media_markdown
from nbgen.notebook.shown_text import visible
from nbgen.notebook.turns import NAMES, shown, spoken


class Transcript:
    """Displays one output and changes it later, from any cell or thread."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def show(self) -> None:
        """A new output, still empty."""
        self._handles.append(display(bundle([]), raw=True, display_id=True))

    def update(self, messages: Sequence[dict[str, Any]]) -> None:
        """Show these messages wherever `show` was called."""
        if not messages:
            return
        for handle in self._handles:
            handle.update(bundle(messages), raw=True)


def bundle(messages: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The messages for display. No HTML: what front ends do with Markdown, they do to untrusted text as well."""
    plain = "\n\n".join(f"{NAMES[turn['role']]}: {visible(as_text(spoken(turn)))}" for turn in messages)
    return {"text/plain": plain, "text/markdown": _folded(messages) if messages else ""}


def _folded(messages: Sequence[dict[str, Any]]) -> str:
    count = sum(turn["role"] != "system" for turn in messages)
    head = f"<details><summary>Transcript: {count} message{'' if count == 1 else 's'}</summary>"
    return "\n\n".join([head, *map(_turn, messages, media_markdown(messages)), "</details>"])


def _turn(turn: dict[str, Any], media: str) -> str:
    text = "\n\n".join(filter(None, (media, shown(turn))))
    if turn["role"] != "assistant":
        text = "\n".join(f"> {line}" for line in text.split("\n"))
    return f"**{NAMES[turn['role']]}**\n\n{text}"
