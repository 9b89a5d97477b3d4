"""Rewrites JSON schemas of older drafts as draft 2020-12, which grammar back ends read. Plain Python."""

from __future__ import annotations

from typing import Any

from nbgen.engine.grammar_limits import inside

#: Keywords that are flags in draft 4, and the bound that each flag applies to.
EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
#: Keywords for which null is a value.
VALUES = ("const", "default")


def modern(schema: Any) -> Any:
    """A schema of the same values in newer keywords. A null keyword, which some languages write, is dropped."""
    if not isinstance(schema, dict):
        return schema
    given = {key: value for key, value in schema.items() if value is not None or key in VALUES}
    if given.get("uniqueItems") is False:  # the default
        del given["uniqueItems"]
    return inside(_with_prefix(_with_bounds(given)), modern)


def _with_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """Replace a bound and its flag `true` by an exclusive bound."""
    node = dict(node)
    for name, bound in EXCLUSIVE.items():
        if isinstance(node.get(name), bool) and node.pop(name) and bound in node:
            node[name] = node.pop(bound)
    return node


def _with_prefix(node: dict[str, Any]) -> dict[str, Any]:
    """Replace a list in `items`, one schema for each place, by `prefixItems`."""
    if not isinstance(node.get("items"), list):
        return node
    others = {key: value for key, value in node.items() if key not in ("items", "additionalItems")}
    rest = {"items": node["additionalItems"]} if "additionalItems" in node else {}
    return {**others, "prefixItems": node["items"], **rest}
