"""The parts that structural tags of xgrammar are built of. Knows nothing of what they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Format = dict[str, Any]
#: The parts that follow a schema, which is any value's where there is none.
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
    """SGLang's older structural tags (`structures` and `triggers`) as xgrammar's own; no schema is any value."""
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
    """The tag and all that it is built of; what its schemas say is no part of it."""
    if isinstance(tag, dict):
        yield tag
        tag = [value for name, value in tag.items() if name != "json_schema"]
    for each in tag if isinstance(tag, list) else ():
        yield from parts(each)
