"""The first line of a magic: its words, its help, and what was probably meant by an unknown word.

Knows argument parsers; nothing of what the magics do.
"""

from __future__ import annotations

import difflib
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from IPython.core.error import UsageError

Magic = TypeVar("Magic", bound=Callable[..., Any])

#: Words as a shell splits them, up to the first that begins with a #.
_BEFORE_COMMENT = re.compile(r"""(?:\s*+(?!\#)(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])++)*+\s*+(?=\#)""")

#: Lines at a cell's beginning that say nothing.
_ABOVE = re.compile(r"\A(?:[^\S\n]*+(?:#[^\n]*+)?\n)++")


def below_comments(cell: str) -> str:
    """The cell without the comments and empty lines that it begins with: a magic may stand below them."""
    return _ABOVE.sub("", cell)


def without_comment(line: str) -> str:
    """The line without a comment, which begins with # as in Python and in shells."""
    code = _BEFORE_COMMENT.match(line)
    return line if code is None else code[0]


def without_semicolon(magic: Any, line: str) -> tuple[str, bool]:
    """The line without a ; at its end, and whether it had one: in a notebook it keeps the output from being shown.

    In quotes, after a backslash, or as the one word after an option that takes a value, it is text.
    """
    rest = line.rstrip().removesuffix(";")
    try:
        words = shlex.split(rest)
    except ValueError:  # what comes before it opens a quote or ends with a backslash
        return line, False
    option = magic.parser._option_string_actions.get(words[-1].removesuffix("=")) if words else None
    if rest == line.rstrip() or (option is not None and option.nargs != 0):
        return line, False
    return rest, True


def parsed(magic: Any, line: str) -> Namespace:
    """Like IPython's `parse_argstring`, but quotes around a value are not part of the value."""
    try:
        words = shlex.split(line)
        options: Namespace = magic.parser.parse_args(words)
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from None
    except UsageError as error:
        unknown = str(error).removeprefix("unrecognized arguments: ")
        more = "" if unknown == str(error) else _suggestion(magic.parser, words, unknown.split())
        raise UsageError(f"{error}{more}") from None
    return options


def asks_for_help(line: str) -> bool:
    """Whether one of the line's words is --help or -h; words within a quoted value do not count."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote is left open; `parsed` reports it
        return False
    return not {"--help", "-h"}.isdisjoint(words)


def plain_help(magic: Magic) -> Magic:
    """The magic, with help in plain text: from Python 3.14 on argparse colours it in a notebook."""
    parser = magic.parser  # type: ignore[attr-defined]  # from `magic_arguments`
    parser.color = False
    magic.__doc__ = parser.format_help()
    return magic


def help_text(magic: Any) -> str:
    """The help of a magic: all that it takes."""
    return str(magic.parser.format_help()).removeprefix("::").strip("\n")


def unescaped(text: str) -> str:
    """A text with Python's escapes for line break, tab and backslash replaced: a command line has no other way."""
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text)


def _suggestion(parser: Any, words: list[str], unknown: list[str]) -> str:
    """What was probably meant by unknown words: an option with a similar or a Python spelling, a value of several
    words, or the question.
    """
    known: Mapping[str, Any] = parser._option_string_actions
    name, equals, _ = unknown[0].partition("=")
    if name.startswith("-") or equals:
        names = [name[2:] for name in known if name.startswith("--")]
        said = name.lstrip("-").replace("_", "-")
        alike = [name for name in names if name.startswith(said)] or difflib.get_close_matches(said, names, 1)
        return f"; did you mean --{alike[0]}?" if alike else ""
    place = words.index(unknown[0]) if unknown[0] in words else 0
    option, value = words[max(place - 2, 0) : place] if place > 1 else ("", "")
    takes = option == "load" or (
        option in known and known[option].nargs != 0 and known[option].type not in (int, float)
    )
    if takes:
        return f"; quote a value of several words: {option} {shlex.quote(' '.join([value, *unknown]))}"
    return "; what is asked goes into the lines below this one" if parser.prog == "%nbgen" else ""
