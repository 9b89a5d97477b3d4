"""Replaces formats in JSON schemas (dates, addresses …) by patterns: back ends enforce these better than formats."""

from __future__ import annotations

from typing import Any

from nbgen.engine.grammar_limits import ANY_TEXT, format_of, pattern_of, schemas
from nbgen.engine.json_types import listed


def with_dates(schema: Any) -> Any:
    """The schema, changed in its place."""
    for node in schemas(schema):
        if (pattern := pattern_of(node)) and "string" in listed(node.get("type")):
            del node["format"]
            node["pattern"] = pattern
        elif node.get("format") in ANY_TEXT:
            del node["format"]
        elif "format" in node:
            node["format"] = format_of(node)
    return schema
