"""How a model calls tools: derived from what its chat template writes for a turn with calls. Knows no tokens.

Five formats are understood. A call is a JSON object with the function's name and its arguments, or one of a list of
such objects (`<tool_call>{"name": …, "arguments": …}</tool_call>`); or the name is followed by a JSON object of
arguments (`[TOOL_CALLS]name[ARGS]{…}`), by a tag for each of them (`<parameter=key>value</parameter>`), or by an
object whose strings stand between marks (`marked_arguments`). The fifth is Python's syntax (`python_calls`). gpt-oss
has a format of its own (`harmony`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from nbgen.engine import marked_arguments
from nbgen.engine.argument_grammar import STYLE
from nbgen.engine.marked_grammar import MARKED
from nbgen.engine.template_turns import SPACES, TemplateTurns, from_tag, shared_end, shared_start, to_tag
from nbgen.engine.written_calls import written_arguments

NAMES = FIRST, SECOND = ("nbgen_first", "nbgen_second")
ARGUMENTS = {"nbgen_key": "nbgen value", "nbgen_other": "nbgen text"}
#: Nine letters and digits: some templates accept no other ids. OpenAI's own models have longer ids. Kimi's ids contain
#: the function's name, and its template writes them in place of names.
CALL_ID, OTHER_ID, NAMED_ID = "nbgenid00", "call_nbgenid00", "functions.{name}:{place}"
#: The field for the text that ends a section of calls, or closes their outer tags.
END_OF_CALLS = "end_of_calls"
#: The field of calls that transformers reads, and the field of such objects without a tag, which text may resemble.
CALLS, BARE_OBJECTS = "tool_calls", "bare_objects"
#: The fields that `written_calls` reads: lists of calls, and lists that are the whole answer.
LISTED_CALLS, BARE_CALLS = "listed_calls", "bare_calls"
#: The field of calls whose outer tags a model has left out.
INNER_CALLS = "inner_calls"
#: Fields whose beginning may also be text.
BARE = (BARE_CALLS, BARE_OBJECTS, INNER_CALLS)
CALL_FIELDS = (CALLS, LISTED_CALLS, *BARE)
_TEXT = {"type": "string", "description": "a text"}
_PARAMETERS = {"type": "object", "properties": dict.fromkeys(ARGUMENTS, _TEXT), "required": list(ARGUMENTS)}
#: The functions that the turns with marker texts call.
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "a function", "parameters": _PARAMETERS}}
    for name in NAMES
]
#: xgrammar's names for the styles of tagged arguments, by the text before an argument's name.
XML_STYLES = {"<parameter=": "qwen_xml", "<arg_key>": "glm_xml", '<parameter name="': "minimax_xml"}
#: Ways in which a turn may have no text.
EMPTY: tuple[dict[str, Any], ...] = ({"content": ""}, {"content": None}, {})
#: Texts that Mistral's models may write between a name and its arguments, whichever of them the template writes.
_MISTRAL = (r"\[ARGS\]", r"\[CALL_ID\][\w-]+\[ARGS\]")
_OPTIONAL = dict.fromkeys(_MISTRAL, r"(?:\[CALL_ID\][\w-]{1,64})?(?:\[ARGS\])?\s*(?=\{)")
#: Patterns of function names and argument names; NEXT_KEY is replaced by the function's own names if these are known.
NAME = r"[\w.-]{1,200}"
KEY = r"[^<>\n]{1,200}"
NEXT_KEY = f"(?:{KEY})"
_DECODER = json.JSONDecoder()


class CallFormat(NamedTuple):
    """The texts around the names and the arguments of a turn's calls, and how transformers' parser finds them."""

    before: str
    middle: str
    #: "" if a turn has at most one call.
    separator: str
    after: str
    #: xgrammar's name for the style of arguments; None if it has none.
    style: str | None
    #: Fields of a response template: of `CALL_FIELDS`, and perhaps `END_OF_CALLS`, which is discarded.
    fields: dict[str, Any]
    #: Whether the template takes arguments as a string of JSON.
    arguments_as_text: bool = False
    #: Whether the template writes no calls, so that they have to be in a turn's text.
    in_content: bool = False
    #: Whether a turn has at most one call.
    single: bool = False
    #: Ids that the template accepts: `CALL_ID` for ids of that form, `NAMED_ID`, or "" for any.
    ids: str = CALL_ID

    @classmethod
    def of(cls, turns: TemplateTurns) -> CallFormat | None:
        """The format of a template's calls; None if it writes none, or none that is understood."""
        for call_id, as_text in product((CALL_ID, NAMED_ID), (False, True)):
            turn = partial(call_turn, turns, as_text=as_text, call_id=call_id)
            one, two = turn(NAMES[:1]), turn(NAMES)
            if FIRST in one and str(ARGUMENTS) not in one:
                found = cls.written_so(one, two, as_text=as_text, quoted="<![CDATA[" in turns.shown)
                return found and found._replace(ids=call_id)
        return None

    @classmethod
    def written_so(cls, one: str, two: str, *, as_text: bool = False, quoted: bool = False) -> CallFormat | None:
        """The format of the turns `one`, which calls the first function, and `two`, which calls both (or is "").

        None if it is not understood. Arguments in tags are `quoted` if they may stand in CDATA sections.
        """
        name = one.index(FIRST)
        if (found := _json_arguments(one, name)) is None:
            return _of_marks(one, two, as_text) or _of_tags(one, two, as_text, quoted)
        texts = _texts(one, two, *found)
        if (field := _object_field(one, two)) is not None:
            return cls(*texts, "json", field, as_text)
        if one[:name].endswith('{"'):
            return _of_keys(texts, as_text)
        return cls(*texts, "json", _named_fields(*texts), as_text) if texts[0].strip() else None

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """The text with which a model calls these functions with these arguments."""
        write = written_arguments if self.style == STYLE else partial(json.dumps, ensure_ascii=False)
        each = (f"{name}{self.middle}{write(arguments)}" for name, arguments in calls)
        return self.before + self.separator.join(each) + self.after


def call_turn(turns: TemplateTurns, names: tuple[str, ...], *, as_text: bool, call_id: str = CALL_ID) -> str:
    """The text that the template writes for a turn that calls these functions; "" if it writes no calls."""
    arguments = json.dumps(ARGUMENTS) if as_text else ARGUMENTS
    calls = [
        {"id": call_id.format(name=n, place=i), "type": "function", "function": {"name": n, "arguments": arguments}}
        for i, n in enumerate(names)
    ]
    answers = (turns.answer({"role": "assistant", **content, "tool_calls": calls}) for content in EMPTY)
    return next((answer for answer in answers if names[-1] in answer), "")


def leaves_calls_out(turns: TemplateTurns) -> bool:
    """Whether a template writes the tools but not the calls in turns."""
    written = any(FIRST in call_turn(turns, NAMES[:1], as_text=as_text) for as_text in (False, True))
    return FIRST in turns.shown and not written


def _texts(one: str, two: str, start: int, end: int) -> tuple[str, str, str, str]:
    """The texts before the name, between name and arguments, between two calls, and after the arguments."""
    before, _, rest = one.partition(FIRST)
    separator = ""
    if two and (first := _json_arguments(two, two.index(FIRST))) is not None:
        separator = two[first[1] :].partition(SECOND)[0]
    return before, rest[: start - len(before) - len(FIRST)], separator, one[end:]


def _json_arguments(text: str, start: int) -> tuple[int, int] | None:
    """Start and end of the arguments, if they stand there as JSON."""
    return next(((a, b) for a, b, value in _json_values(text, start, "{") if value == ARGUMENTS), None)


def _json_values(text: str, start: int, opening: str) -> Iterator[tuple[int, int, Any]]:
    """The JSON values that begin with the bracket `opening`, outermost first: start, end, value."""
    for found in re.finditer(re.escape(opening), text):
        if found.start() < start:
            continue
        try:
            value, end = _DECODER.raw_decode(text, found.start())
        except ValueError:
            continue
        yield found.start(), end, value


def _object_field(one: str, two: str) -> dict[str, Any] | None:
    """The field, by its name, if calls are JSON objects with a name, alone or in a list; None if they are not."""
    objects = ((start, end, _paths(value)) for start, end, value in _json_values(one, 0, "{"))
    start, end, paths = next(((a, b, found) for a, b, found in objects if found), (0, 0, None))
    if paths is None:
        return None
    listed = any(isinstance(each, list) and len(each) == len(NAMES) for _, _, each in _json_values(two, 0, "["))
    opening, closing = one[:start].rstrip(), one[end:].lstrip()
    if listed:
        opening, closing = opening.removesuffix("["), closing.removeprefix("]")
    name, arguments = paths
    root = "" if listed else "content."
    key = re.escape(next(iter(_DECODER.raw_decode(one, start)[0])))
    # Without a tag: such models may also write `;` between calls, and a type first.
    first = (r"(?=\[\s*" if listed else r"(?:;\s*)?(?=") + rf'\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"{key}"\s*:)'
    field = {
        "open_pattern": SPACES + (re.escape(opening.strip()) or first),
        "content": "json",
        "repeats": True,
        "transform": _function(f"{{{root}{name}}}", f"{{{root}{arguments}}}"),
        "transform_each": listed,
    }
    field |= {"close": closing.strip()} if closing.strip() else {}
    return {CALLS if opening.strip() else BARE_OBJECTS: field}


def _paths(value: Any, root: str = "") -> tuple[str, str] | None:
    """The dotted paths of the name and the arguments in an object, if it has both."""
    if not isinstance(value, dict):
        return None
    name = next((key for key, each in value.items() if each == FIRST), None)
    arguments = next((key for key, each in value.items() if each in (ARGUMENTS, json.dumps(ARGUMENTS))), None)
    if name and arguments:
        return root + name, root + arguments
    inner = (_paths(each, f"{root}{key}.") for key, each in value.items())
    return next((found for found in inner if found), None)


def _named_fields(before: str, middle: str, separator: str, after: str, bare: str = "") -> dict[str, Any]:
    """The fields of calls whose name stands before the arguments, perhaps in a section that holds all calls.

    With `bare`, the first text of the arguments, a call without its tags counts only if it is exact up to that text.
    """
    begin = from_tag(shared_end(before, separator)) if separator else before
    end = to_tag(shared_start(after, separator)) if separator else after
    section, rest = before.removesuffix(begin).strip(), after.removeprefix(end).strip()
    opening = rf"(?:{re.escape(section)}\s*)?" if section else ""
    tags, last = _split(begin)
    inner = re.match(r"\s*<[^<>]+>", end) if tags else None
    outer = end[inner.end() :].strip() if inner else ""
    if tags and bare:
        tags = rf"(?:{tags}|(?<!\w)(?={re.escape(last)}{NAME}{re.escape(middle + bare)}))"
    elif tags and not outer:
        tags = f"(?:{tags})?"
    named = rf"{_first(last)}(?P<name>{NAME}){_loose(middle)}"
    field: dict[str, Any] = {
        "open_pattern": rf"{SPACES}{opening}{tags}{named}",
        "content": "json",
        "repeats": True,
        "transform": _function("{name}", "{content}"),
    }
    fields = {CALLS: field}
    if end.strip():
        field["close_pattern"] = SPACES + _first(end)
    elif separator.strip():
        field["close_pattern"] = f"(?={SPACES}{_first(separator)})"
    if inner and outer:  # what closes a call depends on what opened it
        close = SPACES + _first(inner.group())
        field["close_pattern"] += rf"|{close}(?=\s*{_first(last)})"
        fields[INNER_CALLS] = field | {"open_pattern": SPACES + opening + named, "close_pattern": close}
    if ends := "|".join(re.escape(each) for each in (outer, rest) if each):
        fields[END_OF_CALLS] = {"open_pattern": f"{SPACES}(?:{ends})", "close_pattern": r"(?=.)", "content": "text"}
    return fields


def _split(begin: str) -> tuple[str, str]:
    """A pattern for the tags that begin a call, which models sometimes leave out, and the rest of the beginning."""
    found = re.fullmatch(r"\s*((?:<[^<>]+>\s*)+)([^\s<]*[^\w\s<]|<[^<>]+)", begin)
    return (_first(found.group(1)), found.group(2)) if found else ("", begin)


def _of_keys(texts: tuple[str, str, str, str], as_text: bool) -> CallFormat:
    """The format in which a function's name is the key of its arguments."""
    opening, closing = texts[0].removesuffix('{"').strip(), texts[3].removeprefix("}").strip()
    field = {"open": opening.removesuffix("["), "content": "text", "repeats": True}
    field |= {"close": closing.removeprefix("]")} if closing.removeprefix("]") else {}
    return CallFormat(*texts, "json", {LISTED_CALLS: field}, as_text)


def _of_marks(one: str, two: str, as_text: bool) -> CallFormat | None:
    """The format in which arguments are an object whose strings stand between marks."""
    (key, value), (other, last) = ARGUMENTS.items()
    pattern = rf"(.*){FIRST}(\s*)\{{{key}:(<[^<>]+>){value}\3,{other}:\3{last}\3\}}(.*)"
    if (parts := re.fullmatch(pattern, one, re.DOTALL)) is None:
        return None
    before, middle, mark, after = parts.groups()
    separator = two.partition(f"{last}{mark}}}")[2].partition(SECOND)[0]
    fields = _named_fields(before, middle, separator, after, bare="{")
    fields[CALLS] |= {"content_args": marked_arguments.content_args(mark)}
    return CallFormat(before, middle, separator, after, MARKED + mark, fields, as_text)


def _of_tags(one: str, two: str, as_text: bool, quoted: bool) -> CallFormat | None:
    """The format in which each argument has a tag."""
    (key, value), (other, last) = ARGUMENTS.items()
    parts = re.fullmatch(f"(.*){FIRST}(.*){key}(.*){value}(.*){other}(.*){last}(.*)", one, re.DOTALL)
    if parts is None:
        return None
    before, opening, between, joint, _, closing = parts.groups()
    tag, close = from_tag(shared_end(opening, joint)), to_tag(shared_start(joint, closing))
    if not (tag.strip() and close.strip() and between.strip()):
        return None
    middle, after = opening.removesuffix(tag), closing.removeprefix(close)
    separator = two.partition(last)[2].removeprefix(close).partition(SECOND)[0]
    # White space beside a value belongs to it, as in indented code, except what the template writes there.
    begin = _loose(between).removesuffix(r"\s*") + _or_not(between[len(between.rstrip()) :])
    begin = begin.replace('"true"', '"(?:true|false)"')  # an attribute that says whether the value is text
    value, end = r"(?P<value>.*?)", _or_not(close[: -len(close.lstrip())]) + _first(close)
    if quoted:  # a value may stand in a CDATA section
        value = rf"(?P<quoted><!\[CDATA\[)?{value}(?(quoted)\]\]>)"
    if joint.removesuffix(tag).endswith("\n"):  # or, without an end tag, the next argument begins on a new line
        end = rf"(?:{end}|\n(?={re.escape(tag)}{NEXT_KEY}{re.escape(between)}))"
    pattern = rf"{_loose(tag)}(?P<key>{KEY}?){begin}{value}{end}"
    fields = _named_fields(before, middle, separator, after)
    for name in {CALLS, INNER_CALLS}.intersection(fields):
        fields[name] |= {"content": "xml-inline", "content_args": {"tag_pattern": pattern}}
    return CallFormat(before, middle, separator, after, XML_STYLES.get(tag.strip()), fields, as_text)


def _function(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _loose(text: str) -> str:
    """The text as a pattern: white space in it and around it may be missing, ids and numbers may differ."""
    pattern = re.sub(r"\d+", r"\\d+", re.escape(text.strip()).replace(CALL_ID, r"[\w-]+"))
    pattern = _OPTIONAL.get(pattern, re.sub(r"(?:\\\s)+", r"\\s*", pattern))
    return rf"\s*{pattern}\s*" if pattern else r"\s*"


def _or_not(space: str) -> str:
    return f"(?:{re.escape(space)})?"


def _first(text: str) -> str:
    """The same without white space before it, which `SPACES` matches in the fields' patterns."""
    return _loose(text).removeprefix(r"\s*")
