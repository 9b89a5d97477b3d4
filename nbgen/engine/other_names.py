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
    """A pattern of all texts but these names: what some of them begin with, and what goes on otherwise."""
    begun = _begun(names)
    return f"(?:{'' if begun is None else begun + '|'}{_going_on(names)}{_ANY}*)"


def _begun(names: Collection[str]) -> str | None:
    """A pattern of the texts that names begin with and that are none of them; None if there are none."""
    rests = ((re.escape(first), _begun(rest)) for first, rest in _rests(names).items())
    choices = [*([] if "" in names else [""]), *(first + rest for first, rest in rests if rest is not None)]
    return f"(?:{'|'.join(choices)})" if choices else None


def _going_on(names: Collection[str]) -> str:
    """A pattern of the shortest texts that none of the names begins with."""
    rests = _rests(names)
    other = f"[^{''.join(map(re.escape, rests))}]" if rests else _ANY
    return f"(?:{'|'.join([other, *(re.escape(first) + _going_on(rest) for first, rest in rests.items())])})"


def _rests(names: Collection[str]) -> dict[str, list[str]]:
    """What follows in the names, by their first letter."""
    rests: dict[str, list[str]] = {}
    for name in filter(None, names):
        rests.setdefault(name[0], []).append(name[1:])
    return rests
