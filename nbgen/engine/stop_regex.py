"""Regexes that end an answer, matched by RE2: in time linear in the text, whatever the pattern.

Patterns are written for Python's `re`; what only a backtracking engine can match is refused. Knows no tokens.
"""

import re
from collections.abc import Sequence

import re2

from nbgen.errors import InvalidRequest

#: Characters at the end of the text in which a match is looked for.
TAIL = 4096
MAX_MEMORY = 2**20

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = MAX_MEMORY

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
#: What Python's `re` means by these, in RE2's syntax: its classes know Unicode, its `$` a last line break.
_OUTSIDE = {"$": r"\n?\z", r"\Z": r"\z", r"\d": r"\p{Nd}", r"\w": r"[\pL\pN_]", r"\W": r"[^\pL\pN_]"}
_INSIDE = {r"\d": r"\p{Nd}", r"\w": r"\pL\pN_"}


class StopRegexes:
    """Searches growing text for the first of several patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises InvalidRequest for a pattern that RE2 does not take."""
        self.patterns = patterns
        self._compiled = [_compile(pattern) for pattern in patterns]
        self._tail = ""
        self._cut = False

    def append(self, text: str) -> str | None:
        """Add text; the first pattern that matches its end part, as it was given."""
        self._tail += text
        if len(self._tail) > TAIL:
            # One character stays in front, so that `^` and `\\b` see that the text began earlier.
            self._tail, self._cut = self._tail[-TAIL - 1 :], True
        for pattern, compiled in zip(self.patterns, self._compiled, strict=True):
            if compiled.search(self._tail, int(self._cut)):
                return pattern
        return None


def _compile(pattern: str) -> "re2._Regexp":
    multiline = pattern.startswith("(?") and "m" in pattern.partition(")")[0]
    try:
        return re2.compile(_translate(pattern, keep_dollar=multiline), _OPTIONS)
    except re2.error:
        raise InvalidRequest(
            f"stop_regex {pattern!r:.300} is no regex that can be matched in linear time: it is malformed, too large, "
            "or needs backtracking (lookaround, back references)",
            field="stop_regex",
        ) from None


def _translate(pattern: str, *, keep_dollar: bool) -> str:
    def token(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("["):
            return re.sub(r"\\.", lambda escape: _INSIDE.get(escape[0], escape[0]), text)
        return text if keep_dollar and text == "$" else _OUTSIDE.get(text, text)

    return _TOKEN.sub(token, pattern)
