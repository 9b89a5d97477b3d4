"""Structured output in Triton's two spellings: vLLM's `structured_outputs`, and TensorRT-LLM's guided decoding.

Both become the engine's own options: `json_schema`, `regex`, `ebnf`, `structural_tag`. Knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import parse_object


def text_object(name: str, text: Any) -> Mapping[str, Any]:
    """The JSON object that an option holds as text. Raises InvalidRequest."""
    words = f"{name} must be a JSON object as text"
    if not isinstance(text, str):
        raise InvalidRequest(words)
    try:
        return parse_object(text.encode("utf-8", "replace"))
    except InvalidRequest as error:
        raise InvalidRequest(f"{words}: {error.message}") from None


def grammar(options: Mapping[str, Any]) -> dict[str, Any]:
    """Structured output as vLLM's JSON object or TensorRT-LLM's type and guide say it. Raises InvalidRequest."""
    kind, guide = options.get("guided_decoding_guide_type", ""), options.get("guided_decoding_guide", "")
    asked = {kind: guide} if kind else {}
    if guide and not kind:
        raise InvalidRequest("guided_decoding_guide needs guided_decoding_guide_type")
    if text := options.get("structured_outputs", ""):
        named = text_object("structured_outputs", text)
        asked |= {name: value for name, value in named.items() if value not in (None, "", False)}
    return dict(_constraint(name, value) for name, value in asked.items())


def _constraint(kind: str, value: Any) -> tuple[str, Any]:
    match kind:
        case "json" | "json_object" if kind == "json_object" or value in ("", True):
            return "json_schema", '{"type":"object"}'
        case "json" | "json_schema":
            return "json_schema", value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "regex":
            return "regex", value
        case "grammar" | "ebnf_grammar":
            return "ebnf", value
        case "structural_tag":
            return "structural_tag", value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "choice" if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return "regex", "|".join(map(re.escape, value))
    raise InvalidRequest(
        f"structured output of the kind {kind[:80]!r} is not supported: there are json, json_object, regex, choice "
        "(texts), grammar and structural_tag, and TensorRT-LLM's json_schema and ebnf_grammar"
    )
