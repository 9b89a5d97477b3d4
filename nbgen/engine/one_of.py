"""JSON schema's `oneOf`: exactly one branch may match, but a grammar cannot check one branch against another.

So branches must plainly exclude each other: by types, constants, bounds, or a property that one must have and the other
must not, or that is different in each. Plain Python.
"""

from collections.abc import Callable
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.grammar_limits import resolve, schemas
from nbgen.engine.json_types import TYPES, apart, types_of, values_of

Schema = dict[str, Any]
View = Callable[[Any], Any]

#: Keywords that allow an object more properties than the named ones. Without them a grammar writes no others.
OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties")
MAX_DEPTH = 8
#: After so many comparisons, branches count as not exclusive.
MAX_COMPARISONS = 200_000


class OneOf:
    """Compares branches. `view` resolves their references and parts; `typed` adds the type of what is written."""

    def __init__(self, view: View, typed: View) -> None:
        self._seen = view
        self._typed = typed
        #: By the schema's `id`: the schema, to keep it alive and its id unique, and its view.
        self._views: dict[int, tuple[Any, Any]] = {}
        self._comparisons = 0

    def exclusive(self, branches: list[Any]) -> list[Any]:
        """The branches, narrowed so that no value of one matches another. Raises GrammarError."""
        return [self._narrowed(place, branches) for place, branch in enumerate(branches) if branch is not False]

    def _narrowed(self, place: int, branches: list[Any]) -> Any:
        found = branches[place]
        for other, branch in enumerate(branches):
            if other == place or self.excludes(found, branch):
                continue
            found = next((each for each in self._narrower(found, branch) if self.excludes(each, branch)), None)
            if found is None:
                first, second = sorted((place, other))
                raise GrammarError(
                    f"`oneOf` would not be held to: a value may match its branches {first} and {second} both; give "
                    "them a required property with a `const` of its own in each, or write `anyOf`"
                )
        return found

    def excludes(self, written: Any, other: Any, depth: int = 0) -> bool:
        """Whether no value written for the first schema can match the other. False if that is not plain to see."""
        written, other = self._view(written), self._view(other)
        if written is False or other is False:
            return True
        self._comparisons += 1
        if max(depth / MAX_DEPTH, self._comparisons / MAX_COMPARISONS) > 1 or not _are_objects(written, other):
            return False
        if (branches := _branches(written)) is not None:
            return all(self.excludes(each, other, depth + 1) for each in branches)
        if (branches := _branches(other)) is not None:
            return all(self.excludes(written, each, depth + 1) for each in branches)
        written = self._typed(written)
        if (values := values_of(written)) is not None:
            return all(_refuses(other, value) for value in values)
        if (values := values_of(other)) is not None:
            return all(_refuses(written, value) for value in values)
        common = types_of(written) & types_of(other)
        if common == {"object"}:
            return self._differ(written, other, depth)
        return not common or (common <= TYPES["number"] and apart(written, other))

    def _view(self, schema: Any) -> Any:
        if id(schema) not in self._views:
            self._views[id(schema)] = schema, self._seen(schema)
        return self._views[id(schema)][1]

    def _differ(self, written: Schema, other: Schema, depth: int) -> bool:
        """`excludes` for two object schemas."""
        mine, theirs = _properties(written), _properties(other)
        must, needs = set(_required(written)), set(_required(other))
        if _closed(written) and not needs <= {*mine, *must}:
            return True
        shut = "patternProperties" not in other and False in (other.get(name) for name in OPEN)
        if shut and not must <= set(theirs):
            return True
        both = [name for name in mine if name in theirs and name in must | needs]
        both.sort(key=lambda name: not _is_tag(mine[name]))  # tags differ most often
        return any(self.excludes(mine[name], theirs[name], depth + 1) for name in both)

    def _narrower(self, written: Any, other: Any) -> list[Schema]:
        """Narrower versions of an object: one property more required, or one that the other requires left out."""
        written, other = self._view(written), self._view(other)
        if not _are_objects(written, other):
            return []
        mine, must = _properties(written), _required(written)
        optional = [name for name in mine if name not in must]
        telling = [name for name in optional if name in _properties(other)]
        needed = [name for name in optional if name in _required(other)]
        return [{**written, "required": [*must, name]} for name in telling] + [
            {**written, "properties": {key: each for key, each in mine.items() if key != name}} for name in needed
        ]


def with_tags(schema: Any) -> Any:
    """The schema, changed in place: the property that a `discriminator` names is required, since readers need it."""
    tags = {}
    for node in schemas(schema):
        if isinstance(tag := node.get("discriminator"), dict) and isinstance(tag.get("propertyName"), str):
            for branch in node.get("oneOf", ()):
                found = resolve(branch["$ref"], schema) if _are_objects(branch) and "$ref" in branch else branch
                tags[id(found)] = tag["propertyName"]
    for node in schemas(schema):
        if (name := tags.get(id(node))) in _properties(node) and name not in _required(node):
            node["required"] = [*_required(node), name]
    return schema


def _are_objects(*schemas: Any) -> bool:
    return all(isinstance(each, dict) for each in schemas)


def _branches(schema: Schema) -> list[Any] | None:
    return next((schema[name] for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)), None)


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _is_tag(schema: Any) -> bool:
    return isinstance(schema, dict) and values_of(schema) is not None


def _required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _closed(schema: Schema) -> bool:
    return ("properties" in schema or bool(_required(schema))) and all(
        schema.get(name, False) is False for name in OPEN
    )


def _refuses(schema: Schema, value: Any) -> bool:
    """Whether the value has another type than the schema, or is not among the values that it lists."""
    values = values_of(schema)
    return not types_of({"const": value}) <= types_of(schema) or (values is not None and value not in values)
