"""What one run produced, and how it shows itself in a terminal and in a notebook.

Knows nothing of how the text arrived.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LOADS = re.compile(r"!(?=\[)|<(?=\s*/?\s*(?:img|image|picture|source|video|audio|track|input)\b)", re.IGNORECASE)
_WORD_JOINER = "\u2060"


@dataclass
class Result:
    """The text of an answer with its numbers. `str(result)` is the text.

    `finish_reason` is "stop", "length", "abort" (stopped by somebody; the text is what had come) or "error".
    """

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    ttft_s: float | None = None
    tokens_per_s: float | None = None
    model: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        start = self.text if len(self.text) <= 60 else self.text[:59] + "…"
        return f"Result({start!r}, {self.caption})"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return asdict(self)

    @property
    def caption(self) -> str:
        """One line of numbers: tokens, seconds to the first one, tokens per second, why it ended."""
        tokens = self.usage.get("completion_tokens")
        parts = [
            None if tokens is None else f"{tokens} token{'' if tokens == 1 else 's'}",
            None if self.ttft_s is None else f"{self.ttft_s:.2f} s to first token",
            None if self.tokens_per_s is None else f"{self.tokens_per_s:.0f} tokens/s",
            "stopped" if self.finish_reason == "abort" else self.finish_reason,
        ]
        return " · ".join(part for part in parts if part)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return text_bundle(self.text)


def text_bundle(text: str) -> dict[str, str]:
    """A model's text for display. No HTML: front ends would prefer it to the Markdown that they sanitise."""
    return {"text/plain": visible(text), "text/markdown": without_images(text)}


def visible(text: str) -> str:
    """Control and direction characters written out, so that a terminal does not obey them."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def without_images(markdown: str) -> str:
    """The same Markdown with nothing in it that a browser would fetch: an address can carry text away."""
    return _LOADS.sub(lambda match: match[0] + _WORD_JOINER, markdown)
