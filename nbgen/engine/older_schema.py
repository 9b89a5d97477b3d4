"""JSON schemas of older drafts, written as the draft of 2020 has it, which back ends read. Plain Python."""

from __future__ import annotations

from typing import Any

from nbgen.engine.grammar_limits import inside

#: Keywords that draft 4 had as flags of others.
EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
#: Keywords for which null is a value.
VALUES = ("const", "default")


def modern(schema: Any) -> Any:
    """The same values, by newer keywords. A keyword that is null, as some languages write it, says nothing."""
    if not isinstance(schema, dict):
        return schema
    given = {key: value for key, value in schema.items() if value is not None or key in VALUES}
    if given.get("uniqueItems") is False:  # nor does that
        del given["uniqueItems"]
    return inside(_with_prefix(_with_bounds(given)), modern)


def _with_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """A flag that a bound is exclusive as an exclusive bound."""
    node = dict(node)
    for name, bound in EXCLUSIVE.items():
        if isinstance(node.get(name), bool) and node.pop(name) and bound in node:
            node[name] = node.pop(bound)
    return node


def _with_prefix(node: dict[str, Any]) -> dict[str, Any]:
    """A list of items, place by place, as the beginning of an array."""
    if not isinstance(node.get("items"), list):
        return node
    others = {key: value for key, value in node.items() if key not in ("items", "additionalItems")}
    rest = {"items": node["additionalItems"]} if "additionalItems" in node else {}
    return {**others, "prefixItems": node["items"], **rest}
