"""Refuses grammars before a compiler sees them: those too large, and schemas that it would not enforce.

An answer that merely looks checked is worse than a refusal. Plain Python, which knows no compiler.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from nbgen.date_patterns import ADDRESS, NARROWER, OF_FORMATS, email
from nbgen.engine.grammar import LABELS, Grammar, GrammarError
from nbgen.engine.json_types import listed
from nbgen.engine.listed_values import LISTED
from nbgen.engine.regex_inclusion import within
from nbgen.engine.schema_keywords import COUNTS, NO_CHARACTER, check_keywords
from nbgen.engine.structural_tag import current, parts
from nbgen.sampling_params import STRING_FORMATS

MAX_DEPTH = 64
MAX_COUNT = 10_000
MAX_RULES = 2_000

#: Any JSON value, in SGLang's words.
ANY_JSON = "$$ANY$$"

IGNORED = (
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
    "if",
    "then",
    "else",
    "not",
    *LISTED,
)
#: Keywords whose value is a schema, a list of them, or a mapping to them.
ONE = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "propertyNames")
MANY = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
#: Formats that any string has.
ANY_TEXT = {"password", "binary", "path", "file-path", "directory-path"}
#: Formats that no empty string has.
NEVER_EMPTY = STRING_FORMATS - {"uri-reference", "uri-template", "json-pointer", "base64", "base64url"}
#: Other names of formats, some of which allow more than the format here.
ALSO_CALLED = {"url": "uri", "iri": "uri", "idn-email": "email", "guid": "uuid", "byte": "base64"}

#: Possessive, and up to the text's end where a class is not closed, so that each character is read only once.
_ESCAPE_OR_QUOTED = re.compile(r"""\\.|"(?:\\.|[^"\\\n])*+"|\[(?:\\.|[^\]\\])*+(?:\]|\\?\Z)""", re.DOTALL)
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\\?\Z)", re.DOTALL)
_REPEAT = re.compile(r"\{\s*+(\d*+)\s*+,?\s*+(\d*+)\s*+\}")


def check(grammar: Grammar) -> None:
    """Raise GrammarError for a grammar that is not worth compiling."""
    match grammar.kind:
        case "json_schema":
            check_schema(parsed(grammar), but=LISTED)
        case "structural_tag":
            _check_parts(parsed(grammar))
        case "regex":
            check_regex(grammar.text)
        case "ebnf":
            check_ebnf(grammar.text)


def parsed(grammar: Grammar) -> Any:
    """A grammar that is JSON as Python values, once depth and form are checked; takes no longer than reading it.

    Raises GrammarError.
    """
    if grammar.kind == "json_schema" and grammar.text == ANY_JSON:
        return {}
    try:
        found = json.loads(grammar.text)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise GrammarError(NO_CHARACTER) from None
    except (ValueError, RecursionError):
        raise GrammarError(f"the {LABELS[grammar.kind]} text is not JSON") from None
    _check_depth(found)
    if grammar.kind == "structural_tag":
        _check_tag(found)
    return found


def check_regex(pattern: str) -> None:
    """Check the depth of groups and the size of counts. Raises GrammarError."""
    _check_nesting(_ESCAPE_OR_CLASS.sub("", pattern))


def check_ebnf(text: str) -> None:
    """Check the same, and the number of rules."""
    bare = re.sub(r"#[^\n]*", "", _ESCAPE_OR_QUOTED.sub("", text))
    _check_nesting(bare)
    if (rules := bare.count("::=")) > MAX_RULES:
        raise GrammarError(f"it has {rules} rules; at most {MAX_RULES}")


def check_schema(schema: Any, *, but: tuple[str, ...] = ()) -> None:
    """Check depth, counts, references and keywords that would not be enforced, except `but`, which is checked later."""
    _check_depth(schema)
    nodes = list(schemas(schema))
    for node in nodes:
        check_keywords(node)
        _check_ignored({key: value for key, value in node.items() if key not in but})
        _check_counts(node)
        _check_text(node)
    _check_references(nodes, schema)


def _check_tag(tag: Any) -> None:
    if not isinstance(tag, dict) or not ("structures" in tag or "format" in tag):
        raise GrammarError("a structural tag is an object with `format` or `structures`")
    if "structures" in tag:
        _check_structures(tag)


def _check_parts(tag: dict[str, Any]) -> None:
    for part in parts(current(tag)):
        if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
            check_regex(part["pattern"])
        if part.get("type") == "grammar" and isinstance(part.get("grammar"), str):
            check_ebnf(part["grammar"])
        if isinstance(part.get("json_schema"), dict):
            check_schema(part["json_schema"], but=LISTED)


def _check_structures(tag: dict[str, Any]) -> None:
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
        raise GrammarError("`triggers` must be a list of text")
    if not isinstance(structures, list) or not structures:
        raise GrammarError("`structures` must be a list of objects")
    for each in structures:
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("begin", "end")):
            raise GrammarError("each of `structures` needs `begin` and `end`, both text")


def _check_nesting(bare: str) -> None:
    depth = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        if depth > MAX_DEPTH:
            raise GrammarError(f"its groups are nested deeper than {MAX_DEPTH}")
    for counts in _REPEAT.findall(bare):
        for count in filter(None, counts):
            _check_count("a repeat count", int(count[:10]))


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, int | float) and value > MAX_COUNT:
        raise GrammarError(f"{name} is {value}; at most {MAX_COUNT}")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level := [child for each in level for child in _children(each)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"it is nested deeper than {MAX_DEPTH}")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas inside it; what is in `enum`, `const` or `default` is a value, not a schema."""
    if not isinstance(schema, dict):
        return
    yield schema
    inside = [schema.get(name) for name in ONE]
    inside += [each for name in MANY if isinstance(schema.get(name), list) for each in schema[name]]
    inside += [each for name in NAMED if isinstance(schema.get(name), dict) for each in schema[name].values()]
    for each in inside:
        yield from schemas(each)


def inside(node: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of the node with `change` applied to all schemas directly inside it."""
    node = dict(node)
    for name in ONE:
        if isinstance(node.get(name), dict):
            node[name] = change(node[name])
    for name in MANY:
        if isinstance(node.get(name), list):
            node[name] = [change(each) for each in node[name]]
    for name in NAMED:
        if isinstance(node.get(name), dict):
            node[name] = {key: change(each) for key, each in node[name].items()}
    return node


def format_of(node: dict[str, Any]) -> Any:
    """The node's format, by its name here (`ALSO_CALLED`)."""
    form = node.get("format")
    return ALSO_CALLED.get(form, form) if isinstance(form, str) else form


def implies_length(node: dict[str, Any]) -> bool:
    """Whether the format alone ensures `minLength`: no address, for one, is empty."""
    return format_of(node) in NEVER_EMPTY and node.get("minLength") in (0, 1)


def pattern_of(node: dict[str, Any]) -> str | None:
    """One pattern for the node's format and its pattern, with which lengths can be counted; None if there is none."""
    form, least, most = format_of(node), node.get("minLength") or 0, node.get("maxLength")
    asked = node.get("pattern")
    sized = most is not None or least > 1 or asked
    found: str | None = OF_FORMATS.get(form or "")
    if form in ("uri", "email") and sized:
        found = ADDRESS if form == "uri" else email(least, most)
    if not isinstance(asked, str):
        return found
    if form is not None and form not in STRING_FORMATS:  # an unknown format, which the pattern tells
        return asked
    return next((each for each in (found, NARROWER.get(form or "")) if each and within(each, asked)), None)


def _check_ignored(node: dict[str, Any]) -> None:
    for name in IGNORED:
        if node.get(name) not in (None, False):
            raise GrammarError(f"the keyword `{name}` is not supported: answers would not be held to it")


def _check_counts(node: dict[str, Any]) -> None:
    for name in COUNTS:
        _check_count(name, node.get(name))


def _check_text(node: dict[str, Any]) -> None:
    if isinstance(pattern := node.get("pattern"), str):
        check_regex(pattern)
    form = format_of(node)
    if form in ANY_TEXT or pattern_of(node):
        return
    if isinstance(form, str) and form not in STRING_FORMATS and "string" in listed(node.get("type") or "string"):
        raise GrammarError(f"the format {form!r:.80} is not known; known are {', '.join(sorted(STRING_FORMATS))}")
    given = [name for name in ("format", "pattern", "minLength", "maxLength") if node.get(name) is not None]
    if implies_length(node):
        given.remove("minLength")
    if len(given) > 1 and given[0] == "format":
        raise GrammarError(f"{' and '.join(given)} cannot be combined on one string")


def _check_references(nodes: list[dict[str, Any]], root: Any) -> None:
    """Check that references lead to a place in the same schema, and not straight back to themselves."""
    ending: set[int] = set()
    for node in nodes:
        trail: set[int] = set()
        while id(node) not in ending and isinstance(reference := node.get("$ref"), str):
            if id(node) in trail:
                raise leads_back(reference)
            trail.add(id(node))
            if not isinstance(found := resolve(reference, root), dict):
                break
            node = found
        ending |= trail


def leads_back(reference: str) -> GrammarError:
    """The refusal of a reference that leads to itself."""
    return GrammarError(f"$ref {reference!r:.80} leads back to itself")


def is_path(reference: Any) -> bool:
    """Whether a reference is a path from the schema's root."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def resolve(reference: str, root: Any) -> Any:
    """The schema that a reference leads to. Raises GrammarError if that is no schema."""
    if not is_path(reference):
        raise GrammarError(
            f"$ref {reference!r:.80} leads elsewhere: anchors and other documents are not supported, only paths within "
            "the schema (# or #/…)"
        )
    found = root
    for part in reference.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise GrammarError(f"$ref {reference!r:.80} leads nowhere")
    if not isinstance(found, dict | bool):
        raise GrammarError(f"$ref {reference!r:.80} leads to what is no schema")
    return found
