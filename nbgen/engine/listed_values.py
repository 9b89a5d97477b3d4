"""Replaces schema keywords that no grammar enforces by a list of all values, where these are few. Plain Python."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from math import isfinite, perm
from typing import Any

from nbgen.engine.json_types import BOUNDS, listed, steps_within

Schema = dict[str, Any]
#: The keywords.
LISTED = ("multipleOf", "uniqueItems")
#: The most values that are listed.
MOST = 2000


def without_multiples(node: Schema) -> Schema:
    """The node without `multipleOf`, or unchanged: multiples of anything but 1 need both bounds."""
    step, types = node.get("multipleOf"), listed(node.get("type", "number"))
    if step is None or (isinstance(step, float) and not isfinite(step)) or types not in (["integer"], ["number"]):
        return node
    exact = Fraction(str(step))
    whole = types == ["integer"] or exact.denominator == 1
    exact = Fraction(exact.numerator) if whole else exact
    rest = {key: value for key, value in node.items() if key != "multipleOf"}
    if exact == 1:
        return rest | {"type": "integer"}
    if (counts := _counts(node, exact)) is None:
        return node
    values = [int(each * exact) if (each * exact).denominator == 1 else float(each * exact) for each in counts]
    return {key: value for key, value in rest.items() if key not in (*BOUNDS, "type")} | {"enum": values}


def _counts(node: Schema, step: Fraction) -> range | None:
    """The values divided by the step; None where they are not few."""
    low, high = steps_within(node, step)
    if not low or not high or not 0 <= min(high) - max(low) < MOST:
        return None
    return range(max(low), min(high) + 1)


def without_repeats(node: Schema, values_of: Callable[[Any], list[Any] | None]) -> Schema:
    """The node without `uniqueItems`, or unchanged; `values_of` gives all values of a schema, if it lists them."""
    if node.get("uniqueItems") is not True or "prefixItems" in node:
        return node
    rest = {key: value for key, value in node.items() if key != "uniqueItems"}
    if (most := node.get("maxItems")) is not None and most <= 1:
        return rest
    values = values_of(node.get("items"))
    plain = values and all(isinstance(each, str | int | None) for each in values)
    if not values or not plain or listed(node.get("type", "array")) != ["array"]:
        return node
    values = list({repr(each): each for each in values}.values())
    sizes = range(node.get("minItems") or 0, min(len(values), len(values) if most is None else most) + 1)
    if not 0 < sum(perm(len(values), size) for size in sizes) <= MOST:
        return node
    return {key: value for key, value in rest.items() if key not in ("type", "items", "minItems", "maxItems")} | {
        "enum": [list(each) for size in sizes for each in permutations(values, size)]
    }
