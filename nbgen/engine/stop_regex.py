"""Regexes that end an answer, matched by RE2: in time linear in the text, whatever the pattern.

Patterns are written for Python's `re`; what only a backtracking engine can match is refused. Knows no tokens.
"""

import re
import time
from collections.abc import Sequence

import re2

from nbgen.errors import InvalidRequest

#: Characters at the end of the text in which a match is looked for.
TAIL = 4096
#: Bytes of one pattern. With these, what patterns of words and lines may become next is found once and remembered;
#: what outgrows them is searched a hundred times more slowly.
MAX_MEMORY = 2**22
#: … and of all patterns of a request.
ALL_MEMORY = 8 * MAX_MEMORY
#: Seconds of CPU time that a request's searches may take: for every piece of text, and saved up.
FOR_EACH_PIECE, SAVED_UP = 0.0005, 0.1

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
#: What Python's `re` means by these, in RE2's syntax: its classes know Unicode, its `$` a last line break.
_OUTSIDE = {"$": r"\n?\z", r"\Z": r"\z", r"\d": r"\p{Nd}", r"\w": r"[\pL\pN_]", r"\W": r"[^\pL\pN_]"}
_INSIDE = {r"\d": r"\p{Nd}", r"\w": r"\pL\pN_"}


class Patience:
    """How long the searches of one request may still take, all of its samples together."""

    def __init__(self) -> None:
        self._left = SAVED_UP

    def spend(self, seconds: float) -> None:
        """A piece of text took so long. Raises InvalidRequest where that is too long."""
        self._left = min(SAVED_UP, self._left + FOR_EACH_PIECE - seconds)
        if self._left < 0:
            raise InvalidRequest(
                f"stop_regex takes too long to match: more than {FOR_EACH_PIECE * 1000} ms for a token. Ask for fewer "
                "or simpler patterns, which do not begin with a repetition of what comes later in them",
                field="stop_regex",
            )


class StopRegexes:
    """Searches growing text for the first of several patterns."""

    def __init__(self, patterns: Sequence[str], patience: Patience | None = None) -> None:
        """Raises InvalidRequest for a pattern that RE2 does not take."""
        self.patterns = patterns
        self._patience = patience or Patience()
        options = _options(min(MAX_MEMORY, ALL_MEMORY // max(1, len(patterns))))
        self._compiled = [_compile(pattern, options) for pattern in patterns]
        self._tail = ""
        self._cut = False

    def append(self, text: str) -> str | None:
        """Add text; the first pattern that matches its end part, as it was given.

        Raises InvalidRequest where the searches take too long.
        """
        if self._tail and not text:
            return None
        self._tail += text
        if len(self._tail) > TAIL:
            # One character stays in front, so that `^` and `\\b` see that the text began earlier.
            self._tail, self._cut = self._tail[-TAIL - 1 :], True
        began = time.thread_time()
        pairs = zip(self.patterns, self._compiled, strict=True)
        matched = next((pattern for pattern, each in pairs if each.search(self._tail, int(self._cut))), None)
        self._patience.spend(time.thread_time() - began)
        return matched


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    return options


def _compile(pattern: str, options: re2.Options) -> "re2._Regexp":
    multiline = pattern.startswith("(?") and "m" in pattern.partition(")")[0]
    try:
        return re2.compile(_translate(pattern, keep_dollar=multiline), options)
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
