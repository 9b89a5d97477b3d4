"""Structured output as OpenAI's, SGLang's, vLLM's and TensorRT-LLM's clients ask for it.

All forms become one of the engine's options `json_schema`, `regex`, `ebnf`, `structural_tag`. Knows no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.protocols.json_body import parse_object
from nbgen.sampling_params import GRAMMARS, GUIDANCE, LENIENT

#: Fields of earlier versions of vLLM, and their names in `structured_outputs`.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}
_UNSET = (None, "", False)
#: Characters that a regex needs escaped; back ends log a warning for needless escapes.
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def text_object(name: str, text: Any) -> Mapping[str, Any]:
    """The JSON object in an option's text. Raises InvalidRequest."""
    words = f"{name} must be a JSON object as text"
    if not isinstance(text, str):
        raise InvalidRequest(words)
    try:
        return parse_object(text.encode("utf-8", "replace"))
    except InvalidRequest as error:
        why = error.message.replace("the body", "it", 1)
        raise InvalidRequest(words if why == "it must be a JSON object" else f"{words}: {why}") from None


def openai_grammar(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The grammar option that a body of OpenAI's routes asks for, in a field of OpenAI's, SGLang's or vLLM's.

    Several fields may hold the same grammar: clients send the fields of two versions of vLLM at once. Raises
    InvalidRequest naming the field.
    """
    if fields.get("grammar") not in _UNSET:
        raise InvalidRequest("`grammar` is llama.cpp's name for it: send the grammar as `ebnf`", field="grammar")
    asked = [(name, name, fields[name]) for name in GRAMMARS if name in fields]
    asked += [("response_format", *found) for found in _response_format(fields.get("response_format"))]
    if not isinstance(named := fields.get("structured_outputs") or {}, dict):
        raise InvalidRequest("structured_outputs must be a JSON object", field="structured_outputs")
    vllm = [("structured_outputs", kind, value) for kind, value in named.items()]
    vllm += [(name, kind, fields.get(name)) for name, kind in GUIDED.items()]
    asked += [(name, *_constraint(kind, value, name)) for name, kind, value in vllm if value not in _UNSET]
    given = [each for each in asked if each[2] not in _UNSET]
    if others := [name for name, *grammar in given if grammar != [*given[0][1:]]]:
        raise InvalidRequest(
            f"Only one grammar can be set, got {given[0][0]} and {' and '.join(others)}", field=others[0]
        )
    return {option: value for _, option, value in asked}


def grammar_field(fields: Mapping[str, Any]) -> str:
    """The field of a body that asks for a grammar; "" if there is none."""
    names = (*GRAMMARS, *GUIDED, "structured_outputs", "response_format")
    return next((name for name in names if fields.get(name) not in (*_UNSET, {})), "")


def _response_format(given: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    match given and given["type"]:
        case "json_object" if given:
            schema = given.get("schema")
            return [("json_schema", json.dumps({"type": "object"} if schema is None else schema))]
        case "json_schema" if given:
            wanted = given.get("json_schema") or given
            if (schema := wanted.get("schema")) is None:
                raise InvalidRequest(
                    "response_format of the type json_schema needs json_schema", field="response_format"
                )
            return [("json_schema", json.dumps(_lenient(schema) if wanted.get("strict") is False else schema))]
        case "structural_tag":
            return [("structural_tag", json.dumps(given))]
    return []


def _lenient(schema: Any) -> Any:
    """The schema, marked to be followed only as far as it can be enforced."""
    if not isinstance(schema, dict):
        return schema
    said = schema.get(GUIDANCE)
    return schema | {GUIDANCE: {**(said if isinstance(said, dict) else {}), LENIENT: True}}


def triton_grammar(options: Mapping[str, Any]) -> dict[str, Any]:
    """The grammar option in vLLM's JSON object or TensorRT-LLM's type and guide. Raises InvalidRequest."""
    kind, guide = options.get("guided_decoding_guide_type", ""), options.get("guided_decoding_guide", "")
    asked = [("guided_decoding_guide_type", kind, guide)] if kind else []
    if guide and not kind:
        raise InvalidRequest("guided_decoding_guide needs guided_decoding_guide_type")
    if text := options.get("structured_outputs", ""):
        named = text_object("structured_outputs", text)
        asked += [(f"structured_outputs.{name}", name, value) for name, value in named.items() if value not in _UNSET]
    asked += [(name, kind, options[name]) for name, kind in GUIDED.items() if options.get(name) not in _UNSET]
    if len(asked) > 1:
        for _, kind, value in asked:
            _constraint(kind, value)  # an invalid constraint is refused as such
        raise InvalidRequest(f"Only one of {' and '.join(name for name, _, _ in asked)} can be set")
    return dict(_constraint(kind, value) for _, kind, value in asked)


def _constraint(kind: str, value: Any, field: str | None = None) -> tuple[str, Any]:
    match kind:
        case "json" | "json_object" if kind == "json_object" or value in ("", True):
            return "json_schema", '{"type":"object"}'
        case "json" | "json_schema":
            return "json_schema", value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "regex":
            return "regex", value
        case "grammar" | "ebnf_grammar":
            return "ebnf", value
        case "structural_tag":
            return "structural_tag", value if isinstance(value, str) else msgspec.json.encode(value).decode()
        case "choice" if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return "regex", "|".join(_SPECIAL.sub(r"\\\g<0>", each) for each in value)
    raise InvalidRequest(
        f"{field or 'structured output'} of the kind {kind[:80]!r} is not supported: there are json, json_object, "
        "regex, choice (texts), grammar and structural_tag, and TensorRT-LLM's json_schema and ebnf_grammar",
        field=field,
    )
