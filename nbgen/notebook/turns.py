"""A conversation to take along: as a table, as OpenAI's messages, as a line of JSON, as Markdown.

Knows what a turn is; nothing of where the conversation lives.
"""

from __future__ import annotations

import json
from typing import Any


class Turns:
    """Exports of whatever has `turns`: a list of {"role", "content"}."""

    @property
    def turns(self) -> list[dict[str, str]]:
        """The conversation, oldest first."""
        raise NotImplementedError

    def to_openai(self) -> list[dict[str, str]]:
        """As the `messages` of OpenAI's API."""
        return [dict(turn) for turn in self.turns]

    def to_jsonl(self) -> str:
        """One line of JSON, `{"messages": […]}`, as fine-tuning takes it; with its line break."""
        return json.dumps({"messages": self.to_openai()}, ensure_ascii=False) + "\n"

    def to_df(self) -> Any:
        """As a pandas DataFrame with the columns `role` and `content`."""
        import pandas

        return pandas.DataFrame(self.to_openai(), columns=["role", "content"])

    def to_markdown(self) -> str:
        """Each turn below its speaker's name."""
        names = {"user": "You", "assistant": "Model", "system": "System"}
        return "\n\n".join(f"**{names[turn['role']]}**\n\n{turn['content']}" for turn in self.turns)
