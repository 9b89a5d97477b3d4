"""Reads and writes tool calls in Python's syntax, `[name(key="value")]`, and reads them in JSON. Runs nothing.

Values are literals: strings, numbers, lists and dicts, `True` or `true`. Knows no templates and no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: How deeply values may be nested.
MAX_DEPTH = 100
#: The beginning of a call. The length of names is limited to keep this fast, since it is searched with every token.
CALL_START = r"[^\W\d][\w.-]{0,200}\s{0,9}\("
_NAME = re.compile(r"[^\W\d][\w.-]*")
_KEY = re.compile(r"[^\W\d][\w.$-]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
#: With possessive quantifiers, so that a string without an end is scanned only once.
_STRING = re.compile(
    r'[rRuU]?(?:"""((?:[^\\"]++|\\.|"(?!""))*+)"""'
    r"|'''((?:[^\\']++|\\.|'(?!''))*+)'''"
    r'|"((?:[^\\"]++|\\.)*+)"'
    r"|'((?:[^\\']++|\\.)*+)')",
    re.DOTALL,
)
#: What may follow a value or a key.
_FOLLOWS = re.compile(r"\s*+(?:[,:)\]}]|\Z)")
#: By the quote, what shows that there are two strings: between them an operator, nothing, or the second one's key.
_TWO_STRINGS = {
    quote: re.compile(rf"{quote}\s*+(?:[-+*/%|&{quote}]|(?:[,;]\s*+)?[\w.$-]++\s*+=\s*+{quote})|[-+*/%|&]\s*+{quote}")
    for quote in "'\""
}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_DECODER = json.JSONDecoder()
#: What may stand between JSON values.
BETWEEN = re.compile(r"[\s,;]*")
#: Keys that JSON calls may have their arguments under.
_ARGUMENTS = ("arguments", "parameters")
#: The only keys that a JSON call without arguments may have.
_BARE = {"name", "type", "id"}


def read_calls(text: str, *, bare: bool = True) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of all calls in a text. Raises ValueError if it has anything but calls.

    Unless `bare`, an object with a name and no arguments is no call.
    """
    text = text.strip()
    try:
        json_objects = re.match(r"\[?\s*\{", text)
        found = [_of_object(value, bare) for value in _json_objects(text)] if json_objects else _Reader(text).calls()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not found:
        raise ValueError("no calls")
    return found


def read_value(text: str) -> Any:
    """A value in Python's syntax. Raises ValueError if the text is none."""
    return _Reader(text.strip()).value()


def begun_calls(text: str) -> list[tuple[str, dict[str, Any], bool]]:
    """For each call of a list in Python's syntax that may be cut off: name, arguments so far, whether these are all."""
    return list(_Reader(text.strip()).begun())


def written_arguments(arguments: Mapping[str, Any]) -> str:
    """Arguments as Python's keyword arguments."""
    return ", ".join(f"{key}={_written(value)}" for key, value in arguments.items())


def _written(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _json_objects(text: str) -> Iterator[Any]:
    """The values of a JSON list, or several JSON values one after the other."""
    if text.startswith("["):
        yield from json.loads(text)
        return
    place = 0
    while place < len(text):
        value, end = _DECODER.raw_decode(text, place)
        yield value
        place = past(BETWEEN, text, end)


def past(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Where the match of `pattern` at this place ends. The pattern must also match nothing, so there is one."""
    return pattern.match(text, place).end()  # type: ignore[union-attr]


def _of_object(value: Any, bare: bool) -> tuple[str, dict[str, Any]]:
    if isinstance(value, dict) and isinstance(function := value.get("function"), dict) and "name" in function:
        value = function
    if isinstance(value, dict) and isinstance(name := value.get("name"), str):
        nothing: Any = {} if bare and _BARE.issuperset(value) else None  # with other keys it describes a function
        arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), nothing)
        if isinstance(arguments, dict):
            return name, arguments
    if isinstance(value, dict) and len(value) == 1:
        ((name, arguments),) = value.items()
        if isinstance(arguments, dict):
            return name, arguments
    raise ValueError("an object that is no call")


class _Reader:
    """Reads a text from its start, each character a bounded number of times."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        listed = self._takes("[")
        found = [self._call()]
        while self._goes_on(listed):
            found.append(self._call())
        if listed:
            self._must("]")
        if self._place < len(self._text):
            raise ValueError("there is more than calls")
        return found

    def value(self) -> Any:
        found = self._value(0)
        if self._place < len(self._text):
            raise ValueError("there is more than a value")
        return found

    def _goes_on(self, listed: bool) -> bool:
        """Whether another call follows: after a comma, or outside of a list, on a line of its own."""
        if self._takes(","):
            return not (listed and self._sees("]"))
        own_line = "\n" in self._text[self._text.rfind(")", 0, self._place) : self._place]
        return own_line and not listed and self._place < len(self._text)

    def begun(self) -> Iterator[tuple[str, dict[str, Any], bool]]:
        """Each call, up to the end of the text or to where it is no call any more."""
        self._takes("[")
        while (name := _NAME.match(self._text, self._place)) is not None:
            self._place = name.end()
            if not self._sees("("):
                return
            arguments: dict[str, Any] = {}
            try:
                self._arguments(arguments)
            except ValueError:
                yield name.group(), arguments, False
                return
            yield name.group(), arguments, True
            self._takes(",")

    def _call(self) -> tuple[str, dict[str, Any]]:
        name, arguments = self._match(_NAME).group(), dict[str, Any]()
        self._arguments(arguments)
        return name, arguments

    def _arguments(self, arguments: dict[str, Any]) -> None:
        """Read the arguments in parentheses into `arguments`."""
        self._must("(")
        while not self._takes(")"):
            key = self._match(_KEY).group()
            self._must("=")
            if key in arguments:
                raise ValueError("an argument is given twice")
            arguments[key] = self._value(0)
            if not self._takes(","):
                self._must(")")
                break

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        if self._takes("["):
            return self._list(depth + 1)
        if self._takes("{"):
            return self._dict(depth + 1)
        if (string := _STRING.match(self._text, self._place)) is not None:
            return self._string(string) if _FOLLOWS.match(self._text, string.end()) else self._loose_string()
        if (word := _KEY.match(self._text, self._place)) is not None and word.group() in _WORDS:
            self._place = word.end()
            return _WORDS[word.group()]
        return _number(self._match(_NUMBER).group())

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._takes("]"):
            found.append(self._value(depth))
            if not self._takes(","):
                self._must("]")
                break
        return found

    def _dict(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._takes("}"):
            key = self._string(self._match(_STRING))
            self._must(":")
            found[key] = self._value(depth)
            if not self._takes(","):
                self._must("}")
                break
        return found

    def _string(self, found: re.Match[str]) -> str:
        self._place = found.end()
        body = next(group for group in found.groups() if group is not None)
        return body if found.group()[0] in "rR" else _ESCAPE.sub(_character, body)

    def _loose_string(self) -> str:
        """A string with unescaped quotes in it: it ends at the first quote after which a value may end."""
        quote = self._text[self._place]
        end = re.compile(quote + _FOLLOWS.pattern).search(self._text, self._place + 1)
        if quote not in _TWO_STRINGS or end is None:
            raise ValueError(f"unexpected at {self._place}")
        if _TWO_STRINGS[quote].search(self._text, self._place + 1, end.start()):
            raise ValueError(f"two strings at {self._place}")
        body, self._place = self._text[self._place + 1 : end.start()], end.start() + 1
        return _ESCAPE.sub(_character, body)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self._skip_space()
        if (found := pattern.match(self._text, self._place)) is None:
            raise ValueError(f"unexpected at {self._place}")
        self._place = found.end()
        return found

    def _sees(self, mark: str) -> bool:
        self._skip_space()
        return self._text.startswith(mark, self._place)

    def _takes(self, mark: str) -> bool:
        """Whether `mark` comes next; if so, skip it and the white space around it."""
        if found := self._sees(mark):
            self._place += len(mark)
            self._skip_space()
        return found

    def _must(self, mark: str) -> None:
        if not self._takes(mark):
            raise ValueError(f"no {mark} at {self._place}")

    def _skip_space(self) -> None:
        self._place = past(_SPACE, self._text, self._place)


def _number(text: str) -> int | float:
    plain = text.replace("_", "")
    return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)


def _character(escape: re.Match[str]) -> str:
    two, four, eight, octal, other = escape.groups()
    if code := two or four or eight:
        return chr(int(code, 16))
    if octal:
        return chr(int(octal, 8))
    if other in "\\'\"/":
        return other
    return _LETTERS.get(other, "\\" + other)
