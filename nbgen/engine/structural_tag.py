"""Builds the parts of xgrammar's structural tags. Knows nothing of what they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Format = dict[str, Any]
#: Types of parts that follow a JSON schema. Without one they allow any value.
OF_SCHEMAS = ("json_schema", "qwen_xml_parameter")


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


def current(tag: dict[str, Any]) -> dict[str, Any]:
    """Converts SGLang's older structural tags (`structures`, `triggers`) to xgrammar's; no schema means any value."""
    if "structures" not in tag:
        return tag
    tags = [
        {
            "type": "tag",
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each.get("schema") or {}},
            "end": each["end"],
        }
        for each in tag["structures"]
    ]
    triggered = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return {"type": "structural_tag", "format": triggered | {"at_least_one": bool(tag.get("at_least_one"))}}


def parts(tag: Any) -> Iterator[Format]:
    """The tag and all its parts, but not what is inside its JSON schemas."""
    if isinstance(tag, dict):
        yield tag
        tag = [value for name, value in tag.items() if name != "json_schema"]
    for each in tag if isinstance(tag, list) else ():
        yield from parts(each)
