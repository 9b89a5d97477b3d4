"""JSON schemas of all values that another takes, and of more: without what answers cannot be held to. Plain Python."""

from __future__ import annotations

from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.grammar_limits import IGNORED, inside, is_path
from nbgen.engine.schema_keywords import COUNTS, may_be
from nbgen.engine.xgrammar_schema import enforceable

#: What a string can be held to: the first of these rows that is there.
OF_STRINGS = (("pattern",), ("format",), ("minLength", "maxLength"))
#: Keywords of which some values are not held to.
SOME = {"pattern", "format", *COUNTS}
#: What speaks of all that a keyword does not name: where that is left out, it would speak of more.
BESIDE = {
    **dict.fromkeys(("properties", "patternProperties"), ("additionalProperties", "unevaluatedProperties")),
    **dict.fromkeys(("items", "prefixItems"), ("items", "additionalItems", "unevaluatedItems")),
}


def loosened(schema: Any) -> Any:
    """The schema without what is not held to where that is a matter of one keyword. It may still not be enforced."""
    if not isinstance(schema, dict):
        return schema
    node = {key: value for key, value in schema.items() if key not in IGNORED}
    wrong = {key for key, value in node.items() if not may_be(key, value)}
    wrong.update(*(BESIDE.get(key, ()) for key in wrong))
    node = {key: value for key, value in node.items() if key not in wrong}
    node = {key: value for key, value in node.items() if key not in SOME or can_be_enforced({key: value})}
    if "$ref" in node and not is_path(node["$ref"]):
        del node["$ref"]
    if "oneOf" in node and "anyOf" not in node:
        node["anyOf"] = node.pop("oneOf")
    return inside(_of_one_row(node), loosened)


def can_be_enforced(schema: Any) -> bool:
    """Whether answers are held to all that it says."""
    try:
        enforceable(schema)
    except GrammarError:
        return False
    return True


def _of_one_row(node: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in OF_STRINGS if any(name in node for name in row)]
    dropped = {name for row in rows[1:] for name in row}
    return {key: value for key, value in node.items() if key not in dropped}
