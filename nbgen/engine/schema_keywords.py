"""The types of values that keywords of JSON schemas may have, in any draft. Knows no meanings. Plain Python."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from nbgen.engine.grammar import GrammarError
from nbgen.errors import place_of

NO_CHARACTER = "it has half of a surrogate pair, which is no character"
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")

Type = Literal["string", "number", "integer", "boolean", "null", "array", "object"]
Schema = dict[str, Any] | bool
Some = msgspec.Meta(min_length=1)

KINDS: dict[str, Any] = {
    "type": Type | Annotated[list[Type], Some],
    "enum": Annotated[list[Any], Some],
    "required": list[str],
    "items": Schema | list[Schema],
    **dict.fromkeys(("$ref", "pattern", "format"), str),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), list[Schema]),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), dict[str, Schema]),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "propertyNames"), Schema),
    **dict.fromkeys(("additionalItems", "unevaluatedItems"), Schema),
    **dict.fromkeys(COUNTS, Annotated[int, msgspec.Meta(ge=0)]),
    **dict.fromkeys(("minimum", "maximum"), int | float),
    "multipleOf": Annotated[int, msgspec.Meta(gt=0)] | Annotated[float, msgspec.Meta(gt=0)],
    "uniqueItems": bool,
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), int | float | bool),
}
#: A keyword may also be null: some languages write that for one that is not there.
_Keywords = msgspec.defstruct(
    "_Keywords",
    [(name.lstrip("$"), kind | None, None) for name, kind in KINDS.items()],
    rename={name.lstrip("$"): name for name in KINDS},
)


def check_keywords(node: dict[str, Any]) -> None:
    """Raises GrammarError for a keyword of a schema whose value is of the wrong type."""
    try:
        msgspec.convert(node, _Keywords)
    except msgspec.ValidationError as error:
        what, place = place_of(str(error))
        raise GrammarError(f"`{place}` cannot be so: {what}") from None
    except UnicodeEncodeError:
        raise GrammarError(NO_CHARACTER) from None


def may_be(keyword: str, value: Any) -> bool:
    """Whether a keyword may have this value; a name that is no keyword may have any."""
    try:
        check_keywords({keyword: value})
    except GrammarError:
        return False
    return True
