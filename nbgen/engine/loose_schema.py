"""Loosens JSON schemas to what can be enforced: all values that matched still match, and more do. Plain Python."""

from __future__ import annotations

import json
from typing import Any

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_limits import IGNORED, inside, is_path, parsed, schemas
from nbgen.engine.schema_keywords import COUNTS, check_keywords, may_be
from nbgen.engine.structural_tag import parts
from nbgen.engine.xgrammar_schema import enforceable
from nbgen.sampling_params import GUIDANCE, LENIENT

#: Keywords that can be enforced for a string: only the first of these rows that is there.
OF_STRINGS = (("pattern",), ("format",), ("minLength", "maxLength"))
#: Keywords of which some values cannot be enforced.
SOME = {"pattern", "format", *COUNTS}
#: Keywords that apply to all that another keyword does not name: they go with it, or they would apply to more.
BESIDE = {
    **dict.fromkeys(("properties", "patternProperties"), ("additionalProperties", "unevaluatedProperties")),
    **dict.fromkeys(("items", "prefixItems"), ("items", "additionalItems", "unevaluatedItems")),
}


def as_told(grammar: Grammar) -> Grammar:
    """The grammar with its lenient schemas loosened to what can be enforced. Raises GrammarError."""
    if LENIENT not in grammar.text or grammar.kind not in ("json_schema", "structural_tag"):
        return grammar
    found = parsed(grammar)
    if grammar.kind == "json_schema":
        return grammar._replace(text=json.dumps(_as_told(found)))
    for part in parts(found):
        if "json_schema" in part:
            part["json_schema"] = _as_told(part["json_schema"])
    return grammar._replace(text=json.dumps(found, ensure_ascii=False))


def _as_told(schema: Any) -> Any:
    """A lenient schema, loosened; whole where that does not help, so that the refusal tells what is wrong."""
    said = schema.get(GUIDANCE) if isinstance(schema, dict) else None
    if not isinstance(said, dict) or said.get(LENIENT) is not True:
        return schema
    kept = {name: value for name, value in said.items() if name != LENIENT}
    rest = {name: value for name, value in schema.items() if name != GUIDANCE} | ({GUIDANCE: kept} if kept else {})
    for node in schemas(rest):
        check_keywords(node)
    loose = as_far_as_can_be(rest)
    return rest if loose is None else loose


def as_far_as_can_be(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema, or as much of it as can be enforced; None where leaving out single keywords is not enough."""
    if can_be_enforced(schema):
        return schema
    return loose if can_be_enforced(loose := loosened(schema)) else None


def loosened(schema: Any) -> Any:
    """The schema without keywords that cannot be enforced by themselves. The rest may still not be enforceable."""
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
    """Whether answers can be held to all that the schema says."""
    try:
        enforceable(schema)
    except GrammarError:
        return False
    return True


def _of_one_row(node: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in OF_STRINGS if any(name in node for name in row)]
    dropped = {name for row in rows[1:] for name in row}
    return {key: value for key, value in node.items() if key not in dropped}
