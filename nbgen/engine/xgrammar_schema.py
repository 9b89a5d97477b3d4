"""Rewrites JSON schemas so that xgrammar enforces everything that they ask.

xgrammar reads only the first of the keywords in `ALONE` and ignores all beside it, and reads bounds only beside a
`type`. Keywords that it would ignore are merged where that is simple and keeps the meaning; otherwise the schema is
refused. `oneOf` becomes `anyOf` with branches that exclude each other (`one_of`). Plain Python.
"""

import json
import re
from fractions import Fraction
from itertools import combinations
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.grammar_limits import check_schema, implies_length, inside, leads_back, pattern_of, resolve, schemas
from nbgen.engine.json_regex import apart, text_of_string
from nbgen.engine.json_types import BOUNDS, listed, steps_within, types_of_value, values_of, with_whole_bounds
from nbgen.engine.listed_values import without_multiples, without_repeats
from nbgen.engine.older_schema import modern
from nbgen.engine.one_of import OPEN, OneOf, Schema, with_tags
from nbgen.engine.other_names import REST, with_other_names
from nbgen.engine.schema_keywords import check_keywords

#: The keywords that restrict values of one type; any others but `type` and `ALONE` are remarks.
OF_TYPE = {
    "number": (*BOUNDS, "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
    "object": (
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
        *("required", "propertyNames", "minProperties", "maxProperties"),
    ),
}
TYPE_OF = {keyword: type_ for type_, keywords in OF_TYPE.items() for keyword in keywords}
ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
#: How many references, or `allOf` of one part, may lead from one to the next.
MAX_REFERENCES = 16
RESTRICTIONS = {*ALONE, *TYPE_OF, "type"}

#: Rows of keywords whose meaning depends on the others of the row.
TOGETHER = (
    ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
    ("items", "prefixItems", "additionalItems", "unevaluatedItems"),
)

#: For arrays and objects: keywords of size, keywords of contents, and the one of these that `_with_room` adds.
ROOM = (
    (OF_TYPE["array"][4:], OF_TYPE["array"][:4], "items"),
    (OF_TYPE["object"][6:], OF_TYPE["object"][:6], "additionalProperties"),
)
#: References that xgrammar can follow. Their targets stay in place.
NAMED_SCHEMA = re.compile(r"#/(\$defs|definitions)/[^/%~]+")

#: How many decimals xgrammar writes in a number with bounds.
DECIMALS = 6


def enforceable(schema: Any) -> Any:
    """A schema that allows the same values, or in places fewer. Raises GrammarError for what cannot be enforced."""
    try:
        references = _References(schema := with_tags(_modern(schema)))
        written = _rewritten(schema, references)
        if references.moved:
            written = {**written, "$defs": {**written.get("$defs", {}), **references.moved}}
        check_schema(written)
    except RecursionError:
        raise GrammarError("it is nested too deep, or leads too far from one reference to the next") from None
    return written


class _References:
    """The references of a schema. Targets in places that are not known to hold schemas are moved under `$defs`."""

    def __init__(self, schema: Any) -> None:
        self.moved: dict[str, Any] = {}
        self._schema = schema
        self._known = {id(node) for node in schemas(schema)}
        #: By reference: targets in unknown places; and names under `$defs` of those that were moved.
        self._outside: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self.one_of = OneOf(self.seen, _with_type)

    def _found(self, reference: str) -> Any:
        """The direct target of a reference, in the keywords of the newest draft."""
        found = resolve(reference, self._schema)
        if not isinstance(found, dict) or id(found) in self._known:
            return found
        if reference not in self._outside:
            self._outside[reference] = _modern(found)
        return self._outside[reference]

    def seen(self, node: Any) -> Any:
        """The schema with its references followed and its `allOf` merged. Raises GrammarError."""
        for _ in range(MAX_REFERENCES):
            if not isinstance(node, dict):
                break
            if isinstance(node.get("$ref"), str):
                node = self.joined(node) if _beside(node, "$ref", "type") else self._found(node["$ref"])
            elif "allOf" in (node := _without_all_of(node)):
                (node,) = node["allOf"]
            else:
                return _with_branches(node)
        return node

    def merged(self, node: Schema) -> Schema:
        """The node with its `allOf` merged, and each reference with the keywords beside it. Raises GrammarError."""
        for _ in range(MAX_REFERENCES):
            node = _without_all_of(self.joined(node))
            if not isinstance(node.get("$ref"), str) or not _beside(node, "$ref"):
                return node
        raise leads_back(node["$ref"])

    def joined(self, node: Schema) -> Schema:
        """A reference merged with the keywords beside it. It stays a reference if they only repeat its type."""
        others = _beside(node, "$ref")
        if not isinstance(node.get("$ref"), str) or not others:
            return node
        found = self._found(node["$ref"])
        types = found.get("type") if isinstance(found, dict) else None
        if others.keys() == {"type"} and types and set(listed(types)) <= set(listed(others["type"])):
            return {key: value for key, value in node.items() if key != "type"}
        return _flat({key: node[key] for key in node if key not in RESTRICTIONS} | {"allOf": [found, others]})

    def place(self, reference: str) -> str:
        """The reference, or a new one if its target was moved. All targets are moved that xgrammar cannot find."""
        found = self._found(reference)
        if reference not in self._outside and (reference == "#" or NAMED_SCHEMA.fullmatch(reference)):
            return reference
        if reference not in self._names:  # set before rewriting: the target may refer to itself
            name = f"{len(self._names)} moved from {re.sub('[~/%]', ' ', reference)}"
            self._names[reference] = name
            self.moved[name] = _rewritten(found, self)
        return f"#/$defs/{self._names[reference]}"


def _modern(schema: Any) -> Any:
    """The schema in keywords of the newest draft. Raises GrammarError for keywords with values of a wrong type."""
    for node in schemas(schema):
        check_keywords(node)
    return modern(schema)


def _rewritten(node: Any, references: _References) -> Any:
    if not isinstance(node, dict):
        return node
    node = _with_branches(references.merged(node))
    if isinstance(branches := node.get("oneOf"), list):
        others = {key: value for key, value in node.items() if key != "oneOf"}
        node = others | {"anyOf": references.one_of.exclusive(branches)}
    if isinstance(node.get("$ref"), str):
        node = node | {"$ref": references.place(node["$ref"])}
    node = without_repeats(without_multiples(_with_values(node)), lambda items: _values_of(references.seen(items)))
    node = with_other_names(_with_required(_with_room(with_whole_bounds(_with_type(node)))))
    if implies_length(node):
        node = {key: value for key, value in node.items() if key != "minLength"}
    _check_patterns(node)
    _check_range(node)
    return inside(node, lambda child: _rewritten(child, references))


def _beside(node: Schema, *names: str) -> Schema:
    """The node's restrictions, without these keywords."""
    return {key: value for key, value in node.items() if key in RESTRICTIONS and key not in names}


def _without_all_of(node: Schema) -> Schema:
    """The node with all parts of `allOf` merged into it. A single part with nothing beside it is left as it is."""
    parts = node.get("allOf")
    alone = isinstance(parts, list) and len(parts) == 1 and not _beside(node, "allOf")
    return node if alone else _flat(node)


def _flat(node: Any) -> Any:
    parts = node.get("allOf") if isinstance(node, dict) else None
    if not isinstance(parts, list):
        return node
    flat = {key: value for key, value in node.items() if key != "allOf"}
    for part in parts:
        flat = _joined(flat, _flat(part), "allOf")
    return flat


def _with_branches(node: Schema) -> Schema:
    """The node with the keywords beside `anyOf` or `oneOf` merged into each branch."""
    name = next((name for name in ("anyOf", "oneOf") if isinstance(node.get(name), list)), "")
    if not name:
        return node
    others = _beside(node, name)
    branches = [_joined(others, branch, name) if others else branch for branch in node[name] if branch is not False]
    if not branches:
        raise GrammarError(f"`{name}` has no branch that anything matches")
    return {key: value for key, value in node.items() if key not in others} | {name: branches}


def _with_room(node: Schema) -> Schema:
    """The node with contents added to arrays and objects that only have a size, and `true` and `false` replaced.

    Names beside those of patterns are left out.
    """
    for sizes, fills, filling in ROOM:
        if any(name in node for name in sizes) and not any(name in node for name in fills):
            node = node | {filling: {}}
    if isinstance(places := node.get("prefixItems"), list):
        node = node | {"prefixItems": [{} if each is True else each for each in places]}
    if node.get("patternProperties"):  # else other names could be those of a pattern, or named ones
        node = {key: value for key, value in node.items() if key not in REST}
    if node.get("propertyNames") is True:
        node = {key: value for key, value in node.items() if key != "propertyNames"}
    names = node.get("properties")
    if isinstance(names, dict) and not any(node.get(name) for name in OPEN):
        needed = node.get("required") or ()
        node = node | {"properties": {key: each for key, each in names.items() if each is not False or key in needed}}
    return node


def _with_values(node: Schema) -> Schema:
    """The node with only those values of `const` or `enum` that have its type."""
    name = next((name for name in ("const", "enum") if name in node), "")
    values = [node["const"]] if name == "const" else node.get("enum")
    others = _beside(node, name)
    if not name or not isinstance(values, list) or not others:
        return node
    if name == "const" and isinstance(enum := others.pop("enum", None), list):
        values = [value for value in values if _text(value) in map(_text, enum)]
    types = listed(others.pop("type", []))
    values = [value for value in values if not types or set(types) & set(types_of_value(value))]
    if not values:
        raise GrammarError(f"no value of `{name}` is of the `type` and the `enum` beside it")
    if felt := {
        key: None for key in others if TYPE_OF.get(key) in (None, *(t for v in values for t in types_of_value(v)))
    }:
        raise _skipped(name, felt)
    node = {key: value for key, value in node.items() if key not in RESTRICTIONS}
    return node | ({"const": values[0]} if name == "const" else {"enum": values})


def _values_of(schema: Any) -> list[Any] | None:
    return values_of(_with_values(schema)) if isinstance(schema, dict) else None


def _with_type(node: Schema) -> Schema:
    """The node with the type that its keywords imply, if it has none: whoever writes `minimum` means a number."""
    if any(name in node for name in ("type", *ALONE)):
        return node
    types = {TYPE_OF[name]: name for name in node if name in TYPE_OF}
    if len(types) > 1:
        raise GrammarError(f"{_quoted(types.values())} need a `type` beside them: they are of different ones")
    return node | {"type": next(iter(types))} if types else node


def _with_required(node: Schema) -> Schema:
    """The node with each required name among `properties`; one that is not described may have any value."""
    names = node["properties"] if isinstance(node.get("properties"), dict) else {}
    closed = any(node.get(name) is False for name in REST)
    if "propertyNames" in node and (names or "patternProperties" in node or node.get("required") or closed):
        raise GrammarError("`propertyNames` would not be held to beside named properties, or none: leave it out")
    for pattern in node.get("patternProperties") or ():
        meant = _meant(node["patternProperties"][pattern])
        if both := [name for name in names if _meant(names[name]) != meant and _may_match(pattern, name)]:
            raise GrammarError(f"{both[0]!r:.80} is of `properties` and of `patternProperties`: leave one of them out")
    required = node.get("required")
    missing = [name for name in required if name not in names] if isinstance(required, list) else []
    if not missing:
        return node
    rest = node.get("additionalProperties", node.get("unevaluatedProperties", True))
    if rest is False or "patternProperties" in node:
        raise GrammarError(f"`required` names {missing[0]!r:.80}: say under `properties` what it is")
    return node | {"properties": {**names, **dict.fromkeys(missing, {} if rest is True else rest)}}


def _meant(schema: Any) -> str:
    """The restrictions of a schema as text, without its remarks."""
    return _text(_beside(schema, "") if isinstance(schema, dict) else schema)


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except (re.error, OverflowError):  # reported where patterns are checked
        return False


def _check_patterns(node: Schema) -> None:
    """Raises GrammarError for patterns that cannot be enforced for strings or names."""
    if pattern := pattern_of(node) or node.get("pattern"):
        text_of_string(pattern, node.get("minLength") or 0, node.get("maxLength"))
    named = node.get("patternProperties") or {}
    for name in named:
        text_of_string(name)
    for first, second in combinations(named, 2):
        if named[first] != named[second] and not apart(first, second):
            raise GrammarError(
                f"`patternProperties` {first!r:.80} and {second!r:.80} may be of one name, and differ: "
                "answers would not be held to both"
            )


def _check_range(node: Schema) -> None:
    """Raises GrammarError for bounds between which no number can be written."""
    low, high = steps_within(node, Fraction(1, 10**DECIMALS))
    if "number" in listed(node.get("type", [])) and low and high and max(low) > min(high):
        raise GrammarError(f"no number of at most {DECIMALS} decimals is within its bounds")


def _joined(first: Schema, second: Any, name: str) -> Schema:
    """A schema that asks what both parts of `name` ask. Raises GrammarError if they cannot simply be merged."""
    if second is True:
        return first
    if not isinstance(second, dict):
        raise GrammarError(f"a part of `{name}` is no schema that anything matches")
    for row in TOGETHER:
        one, other = ({key: each[key] for key in row if each.get(key) not in (None, True)} for each in (first, second))
        if one and other and one != other and not one.keys() == other.keys() == {"properties"}:
            raise _not_one(name, {*one, *other})
    joined = {**second, **first}
    for key in first.keys() & second.keys() & RESTRICTIONS:
        joined[key] = _both(key, first[key], second[key], name)
    return joined


def _both(key: str, first: Any, second: Any, name: str) -> Any:
    """One value of the keyword `key` that asks what both values ask."""
    if first == second:
        return first
    if key == "required" and isinstance(first, list) and isinstance(second, list):
        return [*first, *(each for each in second if each not in first)]
    if key == "properties" and isinstance(first, dict) and isinstance(second, dict):
        properties = {**first, **second}
        if all(properties[each] == first[each] for each in first):
            return properties
    raise _not_one(name, {key})


def _skipped(name: str, others: Schema) -> GrammarError:
    words = f"{_quoted(others)} beside `{name}` would not be held to"
    return GrammarError(f"{words}: write one schema that says it all, or leave one of them out")


def _not_one(name: str, keys: set[str]) -> GrammarError:
    words = f"what the parts of `{name}` and the keywords beside it say by {_quoted(sorted(keys))}"
    return GrammarError(f"{words} would not be held to: write one schema that says it all")


def _quoted(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(value: Any) -> str:
    """A text that is the same only for equal values: in Python 1 equals True."""
    return json.dumps(value, sort_keys=True)
