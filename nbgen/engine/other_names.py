"""Names that a JSON schema leaves open beside named ones, as a pattern: xgrammar tells them from ASCII names alone.

It takes a name like `größe` for another one, whose value may be anything. Plain Python.
"""

import json
import re
from collections.abc import Collection
from typing import Any

Schema = dict[str, Any]
#: The keywords for properties that have no schema of their own.
REST = ("additionalProperties", "unevaluatedProperties")
_ANY = r"[\s\S]"


def with_other_names(node: Schema) -> Schema:
    """The node with a pattern for the names of other properties, where its own are not all plain."""
    names, rest = node.get("properties"), next((node[key] for key in REST if key in node), False)
    plain = not isinstance(names, dict) or all(json.dumps(name) == f'"{name}"' for name in names)
    if plain or rest is False or node.get("patternProperties"):
        return node
    node = {key: value for key, value in node.items() if key not in REST}
    return node | {"patternProperties": {f"^{_others(list(node['properties']))}$": {} if rest is True else rest}}


def _others(names: Collection[str]) -> str:
    """A pattern of all texts but these names."""
    rests: dict[str, list[str]] = {}
    for name in filter(None, names):
        rests.setdefault(name[0], []).append(name[1:])
    other = f"[^{''.join(map(re.escape, rests))}]" if rests else _ANY
    begun = [re.escape(first) + _others(rest) for first, rest in rests.items()]
    return f"(?:{'|'.join([*([] if '' in names else ['']), f'{other}{_ANY}*', *begun])})"
