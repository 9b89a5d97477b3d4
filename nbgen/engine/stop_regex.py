"""Regexes that end an answer, matched by RE2: in time linear in the text, whatever the pattern.

Patterns are written for Python's `re`; what only a backtracking engine can match is refused. Knows no tokens.
"""

import copy
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import re2

from nbgen.engine.python_regex import MARKED, PythonRegex, marked
from nbgen.errors import InvalidRequest

#: How many characters at the end of the text are searched.
TAIL = 4096
#: RE2's memory for one pattern, in bytes. It is enough to cache the automaton's states for patterns of words and lines;
#: a pattern that needs more is searched a hundred times more slowly.
MAX_MEMORY = 2**22
#: The same for all patterns of a request.
ALL_MEMORY = 8 * MAX_MEMORY
#: CPU seconds that a request's searches may take: what each piece of text adds, and the most that can be saved up.
FOR_EACH_PIECE, SAVED_UP = 0.0005, 0.1


class Patience:
    """The CPU time that the searches of one request, with all its samples, may still take."""

    def __init__(self) -> None:
        self._left = SAVED_UP

    def spend(self, seconds: float) -> None:
        """Note that searching a piece of text took so long. Raises InvalidRequest if too little time is left."""
        self._left = min(SAVED_UP, self._left + FOR_EACH_PIECE - seconds)
        if self._left < 0:
            raise InvalidRequest(
                f"stop_regex takes too long to match: more than {FOR_EACH_PIECE * 1000} ms for a token. Ask for fewer "
                "or simpler patterns, which do not begin with a repetition of what comes later in them",
                field="stop_regex",
            )


class StopRegexes:
    """Searches growing text for the first of several patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises InvalidRequest for a pattern that RE2 cannot compile."""
        self.patterns = patterns
        self._patience = Patience()
        found = [PythonRegex(pattern) for pattern in patterns]
        self._marks = any(each.has_boundaries for each in found)
        count = sum(3 if each.has_boundaries else 1 for each in found)
        options = _options(min(MAX_MEMORY, ALL_MEMORY // max(1, count)))
        self._regexes = [_StopRegex(*each, options) for each in zip(patterns, found, strict=True)]
        self._tail = ""
        self._marked = ""
        self._cut = False

    def again(self) -> Self:
        """The same patterns for another sample of their request, before any text."""
        other = copy.copy(self)
        other._tail, other._marked, other._cut = "", "", False
        return other

    def append(self, text: str) -> str | None:
        """Add text. Returns the first pattern, as the client wrote it, that matches the end part of all text.

        Raises InvalidRequest where the searches take too long.
        """
        if self._tail and not text:
            return None
        self._tail, self._marked, self._cut = self._with(text)
        return self._search(self._tail, self._marked, self._cut)

    def begin(self, text: str) -> None:
        """Add the text that the answer begins with. If a pattern matches in it, later text is searched without it."""
        tail = self._with(text)
        if self._search(*tail) is None:
            self._tail, self._marked, self._cut = tail

    def pass_over(self, unseen: str) -> None:
        """Add the text of a token that the answer leaves out; whether a pattern matches in it was looked for (`find`).

        As in SGLang, a pattern is searched in the text with such tokens and never across them.
        """
        self._tail, self._marked, self._cut = self._with(unseen)

    def find(self, ahead: str) -> str | None:
        """The first pattern that would match if `ahead` were added. It is not, since that text may still change."""
        return self._search(*self._with(ahead))

    def _with(self, text: str) -> tuple[str, str, bool]:
        """The end part of all text with `text` added, the same with marks, and whether its beginning was cut off."""
        tail = self._tail + text
        marks = self._marked + marked(text) if self._marks else ""
        if len(tail) <= TAIL:
            return tail, marks, self._cut
        # One character stays in front, so that `^` and `\\b` see that the text began earlier.
        return tail[-TAIL - 1 :], marks[-MARKED * (TAIL + 1) :], True

    def _search(self, tail: str, marks: str, cut: bool) -> str | None:
        began = time.thread_time()
        found = (each.pattern for each in self._regexes if each.matches(tail, marks, cut))
        matched = next(found, None)
        self._patience.spend(time.thread_time() - began)
        return matched


class _StopRegex:
    """One pattern, with forms of it compiled when a text needs them."""

    def __init__(self, pattern: str, source: PythonRegex, options: re2.Options) -> None:
        self.pattern = pattern
        self._source, self._options = source, options
        self._plain = _compile(pattern, source.plain(), options)

    def matches(self, text: str, marks: str, cut: bool) -> bool:
        """Whether it matches anywhere in the text, or if `cut`, after its first character. `marks`: the text marked."""
        if not self._source.has_boundaries or text.isascii():
            return bool(self._plain.search(text, int(cut)))
        return bool(self._loose.search(text, int(cut)) and self._of_marked.match(marks, MARKED * cut))

    @cached_property
    def _loose(self) -> "re2._Regexp":
        return _compile(self.pattern, self._source.loose(), self._options)

    @cached_property
    def _of_marked(self) -> "re2._Regexp":
        return _compile(self.pattern, self._source.of_marked(), self._options)


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    return options


def _compile(pattern: str, written: str, options: re2.Options) -> "re2._Regexp":
    """RE2's form of `pattern`, which is `written` in its syntax. Raises InvalidRequest if RE2 cannot compile it."""
    try:
        return re2.compile(written, options)
    except re2.error as error:
        words = error.args[0].decode("utf-8", "replace") if error.args else "it is malformed"
        raise InvalidRequest(
            f"stop_regex {pattern!r:.300} is no regex that can be matched in linear time, without going back "
            f"(lookaround, back references): {words}",
            field="stop_regex",
        ) from None
