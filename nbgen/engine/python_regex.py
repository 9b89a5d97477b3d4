"""Translates regexes of Python's `re` to RE2's syntax with the same meaning: Unicode classes, comments, `$`, `{,n}`.

RE2's `\\b` knows only ASCII words. To make it see all words, each character of a text can be put between two ASCII
characters of the same kind, word or not (`marked`), and be matched together with them. Does not use RE2.
"""

import re

#: Python's classes as written inside a class, where RE2 cannot negate: `\\W` is a list, without unassigned characters.
_SPACE = r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1b\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_WORD = r"\pL\pN_"
_NO_WORD = (
    r"\pC\pM\pS\pZ\p{Pd}\p{Pe}\p{Pf}\p{Pi}\p{Po}\p{Ps}"
    r"\x{203f}\x{2040}\x{2054}\x{fe33}\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}"
)
_INSIDE = {r"\d": r"\p{Nd}", r"\D": r"\P{Nd}", r"\s": _SPACE, r"\S": _NO_SPACE, r"\w": _WORD, r"\W": _NO_WORD}
_INSIDE |= {r"\b": r"\x08", "[": r"\["}
_OUTSIDE = {r"\d": r"\p{Nd}", r"\D": r"\P{Nd}", r"\s": f"[{_SPACE}]", r"\S": f"[^{_SPACE}]"}
_OUTSIDE |= {r"\w": f"[{_WORD}]", r"\W": f"[^{_WORD}]"}

_FLAGS = re.compile(r"\(\?([aiLmsux]+)\)")
_ESCAPE = r"\\(?:u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)"
_TOKEN = re.compile(
    r"(?P<remark>\(\?\#[^)]*\))"
    r"|(?P<group>\((?:\?(?:P<\w+>|[a-zA-Z-]*[:)]|.?))?|[)|])"
    r"|(?P<repeat>[*+?]|\{(?:\d+(?:,\d*)?|,\d*)\})"
    r"|(?P<boundary>\\[bB])"
    r"|(?P<place>\^|\$|\\[AZz])"
    rf"|(?P<class>\[\^?\]?(?:{_ESCAPE}|[^\]\\])*\])"
    rf"|(?P<atom>{_ESCAPE}|.)",
    re.DOTALL,
)
_VERBOSE_TOKEN = re.compile(r"(?P<space>[ \t-\r]+|\#[^\n]*)|" + _TOKEN.pattern, re.DOTALL)
_SKIPPED = ("remark", "space")
_NEWLINE = r"\n"
#: How many characters a marked text has for each character of the text.
MARKED = 3
#: The characters that may stand around each character in a marked text.
_EDGE = r"[A \n]"


class PythonRegex:
    """One pattern. Parts that cannot be matched in linear time are left as they are, for RE2 to refuse."""

    def __init__(self, pattern: str) -> None:
        header = _FLAGS.match(pattern)
        flags = header[1] if header else ""
        token = _VERBOSE_TOKEN if "x" in flags else _TOKEN
        found = token.finditer(pattern, header.end() if header else 0)
        self._tokens = [(str(each.lastgroup), each[0]) for each in found if each.lastgroup not in _SKIPPED]
        kept = "".join(flag for flag in flags if flag not in "xu")
        self._flags = f"(?{kept})" if kept else ""
        self._multiline = "m" in flags or any(
            kind == "group" and re.match(r"\(\?\w*m", text) for kind, text in self._tokens
        )
        #: Whether it has `\b` or `\B`.
        self.has_boundaries = any(kind == "boundary" for kind, _ in self._tokens)

    def plain(self) -> str:
        """The pattern for a plain text. Its boundaries, if any, see only ASCII words."""
        return self._flags + "".join(self._translated(*token) for token in self._tokens)

    def loose(self) -> str:
        """The pattern without its boundaries: it matches wherever the pattern may match."""
        return self._flags + "".join(
            "(?:)" if token[0] == "boundary" else self._translated(*token) for token in self._tokens
        )

    def of_marked(self) -> str:
        """The pattern for a marked text. It must be matched from the text's beginning, and finds a match anywhere."""
        begin = f"(?:{_edged('(?s:.)')})*?"
        return f"{begin}(?:{self._flags}{''.join(self._translated(*token, marked=True) for token in self._tokens)})"

    def _translated(self, kind: str, text: str, *, marked: bool = False) -> str:
        match kind:
            case "repeat" if text.startswith("{,"):
                return "{0" + text[1:]
            case "place":
                return self._place(text, marked)
            case "class":
                text = f"[{_class(text[1:-1])}]"
            case "atom":
                text = _OUTSIDE.get(text) or _code(text)
        return _edged(text) if marked and kind in ("atom", "class") else text

    def _place(self, text: str, marked: bool) -> str:
        if text == r"\Z":
            return r"\z"
        if text == "$" and not self._multiline:
            return f"{_edged(_NEWLINE) if marked else _NEWLINE}?\\z"
        return text


def marked(text: str) -> str:
    """The text with each character between two more that tell whether it belongs to a word, or ends a line."""
    return "".join(f"{edge}{each}{edge}" for each in text for edge in _edge(each))


def _edge(character: str) -> str:
    if character.isalnum() or character == "_":
        return "A"
    return "\n" if character == "\n" else " "


def _edged(atom: str) -> str:
    return f"(?:{_EDGE}{atom}{_EDGE})"


def _class(inside: str) -> str:
    """Translate what stands between the brackets of a class."""
    return re.sub(rf"{_ESCAPE}|\[", lambda each: _INSIDE.get(each[0]) or _code(each[0]), inside)


def _code(text: str) -> str:
    """A character in RE2's syntax, where Python's `\\u` and `\\U` are `\\x`."""
    return rf"\x{{{text[2:]}}}" if text[:2] in (r"\u", r"\U") else text
