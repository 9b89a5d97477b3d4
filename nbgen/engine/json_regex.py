"""Rewrites regexes as Python's `re` reads them for xgrammar: for a whole answer, or for the text of a JSON string.

xgrammar matches a pattern from a text's beginning to its end, ignores anchors inside it, and matches JSON as it is
written. So here a schema's pattern may be found anywhere in a string, and a quote, a backslash or a line's end is
written as its escape. Classes are ECMAScript's. Lengths become counts of what the pattern repeats, and great counts
become `marked_rules`. Knows no schema.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from nbgen.engine.grammar import GrammarError
from nbgen.engine.marked_rules import MOST, mark_of_class, mark_of_rule, mark_of_text

#: Ranges of characters, each from its first to its last.
Ranges = list[tuple[int, int]]
#: A part of a pattern as Python's parser gives it: its operation, and its details.
Item = tuple[Any, Any]

LAST, CARET = 0x10FFFF, 0x5E
#: Characters that stand for themselves in JSON, and those that have a short escape there.
PLAIN: Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST)]
ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\\\"}
#: Any character written as an escape, where characters are not counted.
_HEX = "[0-9a-fA-F]"
_CODE = f"u([0-9a-cefA-CEF]{_HEX}|[dD][0-7]){_HEX}{{2}}"
_PAIR = rf"u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
CODES = rf'\\(["\\/bfnrt]|{_CODE}|{_PAIR})'
#: Matches nothing. Without it xgrammar reads an ASCII regex in another way, which rejects escapes beside characters.
ESCAPED = "é{0}"
HALVES: Ranges = [(0xD800, 0xDFFF)]
#: Characters of one byte of UTF-8, of two, and so on.
_OF_BYTES: Ranges = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, LAST)]
_LINE_ENDS: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
_SPACES: Ranges = [(9, 13), (32, 32), (0xA0, 0xA0), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]
_CLASSES: dict[Any, Ranges] = {
    sre.CATEGORY_DIGIT: [(48, 57)],
    sre.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
    sre.CATEGORY_SPACE: [*_SPACES, (0x205F, 0x205F), (0x3000, 0x3000)],
}
_NO_CLASSES = {sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD}
_NO_CLASSES[sre.CATEGORY_NOT_SPACE] = sre.CATEGORY_SPACE
#: The characters whose other case is added where a pattern ignores case.
_CASED = range(0x41, 0x250)
SETS = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)
BEGINS, ENDS = (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING), (sre.AT_END, sre.AT_END_STRING)
_REFUSED = {
    **dict.fromkeys((sre.ASSERT, sre.ASSERT_NOT), "looks around"),
    **dict.fromkeys((sre.GROUPREF, sre.GROUPREF_EXISTS), "refers to a group"),
    **dict.fromkeys((sre.ATOMIC_GROUP, sre.POSSESSIVE_REPEAT), "gives nothing back"),
    sre.AT: "has an anchor or a boundary of words in its midst",
}
#: The upper bound of an unbounded repeat.
ENDLESS = int(sre.MAXREPEAT)
_ANY: Item = (sre.NOT_LITERAL, -1)
#: The beginning of a group named as in ECMAScript; or an escape or a class, in which no group begins.
_NAMED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]|\(\?<(?=[^\W\d])", re.DOTALL)
#: The operation of a part that is repeated while it has no more than a number of characters.
_COUNTED = "COUNTED"
#: Counts up to this are written out: counting while an answer is written takes long when few characters are left.
SINGLY = 24


def whole_answer(pattern: str) -> str:
    """A regex of the answers that the pattern matches from beginning to end. Raises GrammarError."""
    return _Writer(pattern, json=False).whole(anywhere=False)


@lru_cache(64)  # few, as each may be as long as a grammar: checking a schema and writing it ask for the same
def text_of_string(pattern: str, low: int = 0, high: int | None = None, *, json: bool = True) -> str:
    """A regex of what is between the quotes of strings in which the pattern is found. Raises GrammarError.

    A string has `low` to `high` characters; unless `json`, it is written without escapes. Where more than `SINGLY` are
    counted, characters that JSON escapes are left out, unless any character may come.
    """
    return _Writer(pattern, low, ENDLESS if high is None else high, json=json).whole(anywhere=True)


def by_bytes(regex: str) -> str:
    """The regex with classes split by length in UTF-8: an automaton of a mixed class takes bytes that are not UTF-8."""

    def parts(found: re.Match[str]) -> str:
        if found[0].startswith("\\"):  # an escape, not a class
            return found[0]
        ((operation, details),), flags = parsed(found[0])
        own = characters_of(operation, details, flags)
        classes = [_class(part) for each in _OF_BYTES if (part := _without(own, _without([(0, LAST)], [each])))]
        return classes[0] if len(classes) == 1 else f"({'|'.join(classes)})"

    return re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", parts, regex)


def apart(first: str, second: str) -> bool:
    """Whether the patterns' beginnings show that no text matches both; False where they do not tell."""
    pairs = zip(*(_Writer(each, json=False).beginning() for each in (first, second)), strict=False)
    return any(_without(one, other) == _without(one, []) for one, other in pairs)


def parsed(pattern: str) -> tuple[list[Item], int]:
    """The parts of a pattern, and its flags. Raises GrammarError."""
    found = _read(pattern)
    return list(found), found.state.flags


def _read(pattern: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what a later Python may read otherwise
            return _parser.parse(_NAMED.sub(lambda each: "(?P<" if each[0] == "(?<" else each[0], pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise GrammarError(f"the pattern {pattern!r:.80} cannot be read: {error}") from None


class _Writer:
    def __init__(self, pattern: str, low: int = 0, high: int = ENDLESS, *, json: bool) -> None:
        self._pattern, self._low, self._high, self._json = pattern, low, high, json
        self._parsed = _read(pattern)

    def whole(self, *, anywhere: bool) -> str:
        flags = self._parsed.state.flags
        if flags & sre.SRE_FLAG_MULTILINE and _has_anchor(self._parsed):
            raise self._refused("has anchors of lines")
        found = self._alternatives(list(self._parsed), anywhere, anywhere, flags)
        if found is None:
            raise GrammarError(f"the pattern {self._pattern!r:.80} matches no text of such a length")
        return found + ESCAPED if self._json and r"\\" in found and found.isascii() else found

    def beginning(self) -> list[Ranges]:
        """The possible first, second, … characters of a text, as far as the pattern tells them plainly."""
        items, found = list(self._parsed), list[Ranges]()
        if not items or items[0][0] is not sre.AT or items[0][1] not in BEGINS:
            return found
        for operation, details in items[1:]:
            repeated = operation in REPEATS and details[0] and len(details[2]) == 1
            operation, details = details[2][0] if repeated else (operation, details)
            if operation not in SETS:
                break
            found.append(characters_of(operation, details, self._parsed.state.flags))
            if repeated:
                break
        return found

    def _alternatives(self, items: list[Item], before: bool, after: bool, flags: int) -> str | None:
        """The regex of a whole text, with anything `before` and `after` what is not anchored; None if none can match.

        An alternative with anchors at either end is written out for each choice.
        """
        while items and items[0][0] is sre.AT and items[0][1] in BEGINS:
            items, before = items[1:], False
        while items and items[-1][0] is sre.AT and items[-1][1] in ENDS:
            items, after = items[:-1], False
        for end in (0, len(items) - 1) if items else ():
            choices = _choices(items[end]) if len(items) == 1 or _has_anchor(items[end]) else None
            if choices is not None:
                each = [[*items[:end], *choice, *items[end + 1 :]] for choice in choices]
                found = [text for one in each if (text := self._alternatives(one, before, after, flags)) is not None]
                return f"({'|'.join(found)})" if found else None
        anything: Item = (sre.MAX_REPEAT, (0, ENDLESS, _parser.SubPattern(self._parsed.state, [_ANY])))
        bounded = self._bounded(
            [*[anything] * before, *items, *[anything] * after] if items else [anything] * (before or after)
        )
        return None if bounded is None else self._sequence(bounded, flags)

    def _bounded(self, items: list[Item]) -> list[Item] | None:
        """The parts, with counts that keep within the lengths, or allow fewer; None if no text has such a length."""
        widths = [self._width([each]) for each in items]
        least, most = (sum(ends) for ends in zip((0, 0), *widths, strict=True))
        if least > self._high or most < self._low:
            return None
        if self._low <= least and (most <= self._high or self._high == ENDLESS):
            return items
        giving = [place for place, each in enumerate(items) if each[0] in REPEATS and len({*widths[place]}) > 1]
        endless = [place for place in giving if widths[place][1] >= ENDLESS]
        giving = endless or sorted(giving, key=lambda place: widths[place][0] - widths[place][1])[:1]
        rest = [width for place, width in enumerate(widths) if place not in giving]
        share = (self._high - sum(high for _, high in rest)) // max(1, len(giving))
        if not giving or (share < 0 and self._high < ENDLESS):
            raise self._refused("has no place where its lengths could be counted")
        missing = self._low - least + sum(widths[place][0] for place in giving[:1])
        items = list(items)
        for place in giving:
            operation, (low, high, body) = items[place]
            narrow, wide = self._width(body)
            high = high if self._high == ENDLESS else min(high, max(share, 0) // min(max(wide, 1), ENDLESS))
            low = max(low, -(-missing // max(narrow, 1)) if place == giving[0] else 0)
            if low > high or wide >= ENDLESS or narrow == 0:
                raise self._refused("has no place where its lengths could be counted")
            left = share - low * wide - (wide - 1)  # all but one character of the last repeat may be too many
            counted = place in endless and wide > 1 and SINGLY < left <= MOST
            items[place] = (_COUNTED, (low, left, body)) if counted else (operation, (low, high, body))
        return items

    def _width(self, items: Any) -> tuple[int, int]:
        low, high = _parser.SubPattern(self._parsed.state, list(items)).getwidth()
        return int(low), int(high)

    def _sequence(self, items: Any, flags: int) -> str:
        return "".join(self._item(operation, details, flags) for operation, details in items)

    def _item(self, operation: Any, details: Any, flags: int) -> str:
        if operation in SETS:
            return self._set(characters_of(operation, details, flags))
        if operation is sre.BRANCH:
            return f"({'|'.join(self._sequence(each, flags) for each in details[1])})"
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = details
            return _group(self._sequence(inner, (flags | added) & ~removed))
        if operation in REPEATS:
            low, high, body = details
            return self._repeat(low, high, body, flags)
        if operation is _COUNTED:
            low, left, body = details
            text = f"({self._sequence(body, flags)})"
            return text * low + mark_of_rule(left, f"{text}*")
        raise self._refused(_REFUSED.get(operation, "cannot be written"))

    def _set(self, ranges: Ranges) -> str:
        if not _without(ranges, HALVES):
            raise GrammarError("it matches no text at all")
        if not self._json:
            return _class(_without(ranges, HALVES))
        plain = _without(ranges, _without([(0, LAST)], PLAIN))
        escapes = "".join(text for code, text in ESCAPES.items() if _without([(code, code)], ranges) == [])
        if not plain and not escapes:
            raise self._refused("has characters that no answer is written with")
        escaped = rf"\\[{escapes}]"
        return f"({_class(plain)}|{escaped})" if plain and escapes else _class(plain) if plain else f"({escaped})"

    def _repeat(self, low: int, high: int, body: Any, flags: int) -> str:
        text = self._sequence(body, flags)
        if not text or high == 0:
            return ""
        one = text if len(body) == 1 and body[0][0] in SETS else f"({text})"
        if (low, high) == (0, 1):  # xgrammar lets the end of a `(…)?` come alone if it may repeat
            return f"(|{text})"
        if one is text and one.startswith("("):
            operation, details = body[0]
            anything = not _without(_without([(0, LAST)], HALVES), characters_of(operation, details, flags))
            return _counted(one, low, high, anything)
        return _repeated(one, low, high)

    def _refused(self, why: str) -> GrammarError:
        return GrammarError(f"the pattern {self._pattern!r:.80} {why}, which would not be held to: write it without")


def _has_anchor(items: Any) -> bool:
    return "AT_" in repr(items)


def _choices(item: Item) -> list[list[Item]] | None:
    """The choices of an alternative, or the content of a group, each of which may take its place."""
    operation, details = item
    if operation is sre.BRANCH:
        return [list(each) for each in details[1]]
    return [list(details[3])] if operation is sre.SUBPATTERN and not details[1] and not details[2] else None


def characters_of(operation: Any, details: Any, flags: int) -> Ranges:
    """The characters that one item of the pattern may match."""
    if operation is sre.ANY:
        return [(0, LAST)] if flags & sre.SRE_FLAG_DOTALL else _without([(0, LAST)], _LINE_ENDS)
    negated = operation is sre.NOT_LITERAL or (operation is sre.IN and details[0][0] is sre.NEGATE)
    found: Ranges = []
    for kind, value in details if operation is sre.IN else [(sre.LITERAL, details)]:
        if kind is sre.CATEGORY:
            found += _CLASSES.get(value) or _without([(0, LAST)], _CLASSES[_NO_CLASSES[value]])
        elif kind is not sre.NEGATE:
            found.append((value, value) if kind is sre.LITERAL else value)
    if flags & sre.SRE_FLAG_IGNORECASE:
        letters = [chr(code) for low, high in found for code in _CASED if low <= code <= high]
        found += [(ord(case), ord(case)) for each in letters for case in (each.lower(), each.upper()) if len(case) == 1]
    return _without([(0, LAST)], found) if negated else found


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """The characters of `ranges` that are not in `others`, in order."""
    left: Ranges = []
    for low, high in sorted(ranges):
        low = max(low, left[-1][1] + 1) if left else low
        for begin, end in sorted(others):
            if end >= low and begin <= high:
                left += [(low, begin - 1)] if begin > low else []
                low = end + 1
        left += [(low, high)] if low <= high else []
    return left


def _class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    if ranges[0][0] == CARET:  # first in a class it negates in xgrammar, escaped or not
        ranges = [*_without(ranges, [(CARET, CARET)]), (CARET, CARET)]
    return f"[{''.join('-'.join(map(_character, (low, high)[: 1 + (low < high)])) for low, high in ranges)}]"


def _character(code: int) -> str:
    if code in (0, 10, 13):  # after others' escapes, xgrammar would take a class's digits for its own
        return f"\\u{code:04x}"
    return ("\\" if chr(code) in r"\^$.|?*+()[]{}-" else "") + chr(code)


def _group(text: str) -> str:
    return f"({text})" if text else ""


def _counted(one: str, low: int, high: int, anything: bool) -> str:
    """`low` to `high` of a character that may be escaped; `anything` if it may be any character."""
    plain, _, escaped = one[1:-1].rpartition(r"|\\")
    if high <= SINGLY:
        return one * low + _up_to(one, high - low)
    begin = one * low if low <= SINGLY else f"{plain or one}{{{low}}}"
    if SINGLY < high - low <= MOST and anything:
        return begin + mark_of_text(high - low)
    if high < ENDLESS:
        return _repeated(plain or one, low, high)
    escaped = CODES if anything else rf"\\{escaped}"
    return f"{begin}{plain}*({escaped}{plain}*)*" if plain else f"{begin}{one}*"


def _repeated(one: str, low: int, high: int) -> str:
    """`low` to `high` of a class of characters, or of anything else whose end is unambiguous."""
    if high >= ENDLESS:
        return one + {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    if SINGLY < high - low <= MOST and one.startswith("["):
        return (f"{one}{{{low}}}" if low else "") + mark_of_class(high - low, one)
    return f"{one}{{{low},{high}}}"


def _up_to(one: str, most: int) -> str:
    return f"(|{one}" * most + ")" * most
