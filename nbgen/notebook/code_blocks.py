"""The code between fences in an answer's Markdown, as CommonMark 4.5 defines them. Knows no language."""

from __future__ import annotations

import re

_FENCE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,}(?!~))[^\n`]*\n(?P<code>.*?)(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)", re.M | re.S
)


def code_blocks(markdown: str) -> list[str]:
    """Each fenced block's code, without its fences. A last block whose end was cut off counts."""
    return [match["code"].removesuffix("\n") for match in _FENCE.finditer(markdown)]


def as_cell(markdown: str) -> str:
    """The answer's code as one cell; a text without any becomes a Markdown cell's magic."""
    blocks = code_blocks(markdown)
    return "\n\n".join(blocks) if blocks else f"%%markdown\n{markdown}"
