"""Text from tokens, as they come: never half a character, never the beginning of a stop string.

Follows the two-offset window of text-generation servers. It is seeded with the end of the prompt, and shows nothing
while the last token is a raw byte, as sentencepiece's byte fallback may still change that text. Stop strings are also
looked for in such held text (`ahead`). Knows no tokenizer: it is given a function from ids to text.
"""

import copy
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Self

from nbgen.engine.stop_regex import StopRegexes

CONTEXT_TOKENS = 6
MAX_HELD_TOKENS = 32
#: Most tokens of an incomplete character.
PART = 3
REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one sequence, token by token."""

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        is_byte: Callable[[int], bool],
        prompt_ids: Sequence[int],
        skipped: Container[int] = (),
    ) -> None:
        """`skipped` are the tokens that `decode` leaves out of the text."""
        self._decode = decode
        self._is_byte = is_byte
        self._skipped = skipped
        seen = (token for token in reversed(prompt_ids) if token not in skipped)
        self._ids, self._read = _seed(decode, [*islice(seen, CONTEXT_TOKENS + PART)][::-1])
        self._window = 0
        self._length = 0
        #: The whole characters of the text held back: they are part of the answer if nothing follows.
        self.ahead = ""

    def copy(self) -> Self:
        """An independent copy that continues from here."""
        other = copy.copy(self)
        other._ids = [*self._ids]
        return other

    def before(self, prompt_ids: Sequence[int]) -> str:
        """The text of the prompt that it was made for, without the part of a character that begins the answer."""
        shown = [token for token in prompt_ids if token not in self._skipped]
        return self._decode(shown[: len(shown) + self._read - len(self._ids)])

    def place(self, token_id: int) -> int:
        """Where in the text a token would begin: at the start of an incomplete character if it continues that one."""
        if self._read == len(self._ids):
            return self._length
        shown, window = self._decode(self._ids[self._window : self._read]), self._ids[self._window :]
        held, after = (self._decode([*window, *more])[len(shown) :] for more in ((), (token_id,)))
        if self._is_byte(token_id):
            whole = held.rstrip(REPLACEMENT)
        else:
            goes_on = after == held or not after.startswith(held)
            whole = held.removesuffix(REPLACEMENT) if goes_on else held
        return self._length + len(whole)

    def append(self, token_id: int) -> str:
        """Add a token; returns the text that is now certain."""
        self.ahead = ""
        if token_id in self._skipped:
            return ""
        self._ids.append(token_id)
        text = self._pending()
        broken = text.endswith(REPLACEMENT)
        if len(self._ids) - self._read < MAX_HELD_TOKENS and (broken or self._is_byte(token_id)):
            self.ahead = text.rstrip(REPLACEMENT)
            return ""
        return self._show_whole(text) if broken else self._advance(text)

    def flush(self) -> str:
        """The text that was held back, as it is (it may contain U+FFFD)."""
        return self._advance(self._pending())

    def _show_whole(self, text: str) -> str:
        """Show `text`, which was held too long, without an incomplete character at its end, unless it has no others."""
        for end in range(len(self._ids) - 1, max(self._read, len(self._ids) - PART - 1), -1):
            if (whole := self._pending(end)) and not whole.endswith(REPLACEMENT):
                return self._advance(whole, end)
        return self._advance(text)

    def _pending(self, end: int | None = None) -> str:
        shown = self._decode(self._ids[self._window : self._read])
        return self._decode(self._ids[self._window : end])[len(shown) :]

    def _advance(self, text: str, end: int | None = None) -> str:
        if text:
            self._window, self._read = self._read, len(self._ids) if end is None else end
            self._length += len(text)
        elif len(self._ids) - self._read > MAX_HELD_TOKENS:  # tokens without text are at most part of a character
            del self._ids[self._read : -CONTEXT_TOKENS]
        return text


def _seed(decode: Callable[[list[int]], str], prompt_end: list[int]) -> tuple[list[int], int]:
    """The prompt's last tokens, from the start of a character on, and how many of them make whole characters.

    If a prompt ends inside a character, the whole character is part of the answer. One incomplete character at either
    end makes a whole run of raw bytes undecodable.
    """
    for size in range(CONTEXT_TOKENS, CONTEXT_TOKENS + PART + 1):
        ids = prompt_end[-size:]
        for read in range(len(ids), max(-1, len(ids) - PART - 1), -1):
            if not decode(ids[:read]).endswith(REPLACEMENT):
                return ids, read
    return ids, len(ids)


class StopStrings:
    """Looks for stop strings and regexes in growing text, and holds back what may become one.

    As in SGLang, text that a regex matched is shown, unless it equals the pattern's own text; so is the shown part of
    a stop string that lies partly in tokens which the text leaves out.
    """

    def __init__(
        self,
        stops: Sequence[str],
        *,
        keep_match: bool = False,
        in_order: bool = False,
        regexes: StopRegexes | None = None,
    ) -> None:
        """Of stop strings that match at once, the first in the text counts, or if `in_order` the first of `stops`."""
        self._stops = stops
        self._in_order = in_order
        self._keep_match = keep_match
        self._regexes = regexes
        self._hidden = [*stops, *regexes.patterns] if regexes else stops
        self._longest = max(map(len, self._hidden), default=0)
        self._held = ""
        #: The end of the text including tokens that it leaves out, kept as long as a stop may begin in one of these.
        self._said = ""
        #: Characters since the last token that was left out.
        self._since = 0
        self.matched: str | None = None

    def begin(self, text: str) -> str:
        """Add text that precedes the answer and cannot stop it by itself; returns the part that may be shown."""
        if self._regexes:
            self._regexes.begin(text)
        self._held = text
        return self._take(len(text) - self._undecided())

    def find(self, ahead: str) -> str | None:
        """The stop that would match if `ahead` came next and nothing followed; `ahead` is not added."""
        if not ahead:
            return None
        found = self._found(ahead)
        return self._regexes.find(ahead) if found is None and self._regexes else found

    def append(self, text: str) -> str:
        """Add text; returns the part that may be shown. Sets `matched` once a stop string is complete."""
        self._held += text
        if self._said:
            self._said = self._said + text if self._since < self._longest else ""
            self._since += len(text)
        self.matched = self._found()
        if self.matched is None and self._regexes:
            self.matched = self._regexes.append(text)
        if self.matched is not None:
            return self._cut(self.matched)
        return self._take(len(self._held) - self._undecided())

    def pass_over(self, unseen: str) -> None:
        """Note the text of a token that the answer leaves out: a stop may begin there."""
        if unseen and self._regexes:
            self._regexes.pass_over(unseen)
        if unseen and self._stops:
            self._said, self._since = (self._said or self._held)[-self._longest :] + unseen, 0

    def flush(self) -> str:
        """The text that was held back and turned out to be no stop."""
        return self._take(len(self._held))

    def _found(self, ahead: str = "") -> str | None:
        found = self._first(self._held + ahead)
        return self._first(self._said + ahead) if found is None and self._said else found

    def _first(self, text: str) -> str | None:
        found = (stop for stop in self._stops if stop in text)
        return min(found, key=(lambda _: 0) if self._in_order else text.find, default=None)

    def _cut(self, stop: str) -> str:
        """The text up to `stop`, or including it; all of it if a regex matched text other than its pattern."""
        start = self._held.find(stop)
        if start < 0:
            return self._take(len(self._held))
        return self._take(start + len(stop) if self._keep_match else start, drop_rest=True)

    def _undecided(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._hidden):
                return length
        return 0

    def _take(self, length: int, *, drop_rest: bool = False) -> str:
        text, self._held = self._held[:length], "" if drop_rest else self._held[length:]
        return text
