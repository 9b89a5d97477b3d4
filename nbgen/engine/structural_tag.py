"""The parts that structural tags of xgrammar are built of. Knows nothing of what they describe."""

from __future__ import annotations

from typing import Any

Format = dict[str, Any]


def text(value: str) -> Format:
    """This text and no other."""
    return {"type": "const_string", "value": value}


def sequence(*elements: Format) -> Format:
    """One after the other."""
    return {"type": "sequence", "elements": list(elements)}


def optional(content: Format) -> Format:
    """It or nothing."""
    return {"type": "optional", "content": content}


def one_of(*elements: Format) -> Format:
    """Any of them."""
    return {"type": "or", "elements": list(elements)}
