"""Recognizes models that call tools in Python's syntax, `[name(key="value")]`, by their chat template.

Some templates write no calls: then the model's special tokens, or the template's text that describes the tools, tell
how a list of calls looks in an answer. Knows no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from nbgen.engine.argument_grammar import STYLE
from nbgen.engine.call_format import (
    ARGUMENTS,
    BARE_CALLS,
    FIRST,
    LISTED_CALLS,
    NAMES,
    SECOND,
    CallFormat,
    call_turn,
    leaves_calls_out,
)
from nbgen.engine.template_turns import TemplateTurns
from nbgen.engine.written_calls import CALL_START

#: Tokens around a list of calls. A vocabulary may have them although the template shows no calls.
PAIR = ("<|tool_call_start|>", "<|tool_call_end|>")
#: Tokens that may stand around calls or be left out: models whose templates have them do either.
LOOSE = ("<|python_start|>", "<|python_end|>")
#: White space before calls.
SPACE = r"\s{0,20}"
_KEYS, _VALUES = list(ARGUMENTS), list(ARGUMENTS.values())
_CALL = rf"{FIRST}\(\s*{_KEYS[0]}=.*?{_VALUES[0]}.*?{_KEYS[1]}=.*?{_VALUES[1]}[^()\[\]]*\)"
_WRITTEN = re.compile(rf"(.*?)\[\s*{_CALL}\s*\](.*)", re.DOTALL)
_ROW = re.compile(rf"(\s*<[^<>]+>\s*){_CALL}(\s*</[^<>]+>\s*)", re.DOTALL)
_NAMED = re.compile(rf'.*?(\{{\s*"name":\s*"){FIRST}("[^{{]*)\{{.*', re.DOTALL)
_TOLD = re.compile(rf"\[{CALL_START}\s*\w+=[^()\[\]]{{0,200}}\)(?:,\s*{CALL_START}[^()\[\]]{{0,200}}\))*\s*\]")


def python_calls(turns: TemplateTurns, source: str, tokens: Collection[str]) -> CallFormat | None:
    """The format of a template with the text `source`, of a model with these `tokens`; None if it is another one."""
    one = call_turn(turns, NAMES[:1], as_text=False).strip()
    loose = all(tag in source for tag in LOOSE)
    if (found := _WRITTEN.fullmatch(one)) is not None:
        before, after = (group.strip() for group in found.groups())
        known = before.startswith(("<", "[")) or not (before or after)
        return _between(before, after, turns, loose) if known else None
    if loose and (named := _NAMED.fullmatch(one)) is not None:
        before, between = named.groups()
        return CallFormat(before, between, "", "}", "json", _bare(turns, loose))
    if (found := _ROW.fullmatch(one)) is not None:
        return _in_a_row(turns, *found.groups())
    if not leaves_calls_out(turns):
        return None
    if all(tag in tokens for tag in PAIR):
        return _between(*PAIR, turns, loose)._replace(in_content=True)
    return _between("", "", turns, loose)._replace(in_content=True) if _TOLD.search(turns.shown) else None


def with_told_calls(calls: CallFormat, turns: TemplateTurns) -> CallFormat:
    """The format; it also allows calls in Python's syntax if the template tells the model to write these."""
    return calls._replace(fields=_bare(turns, False) | calls.fields) if _TOLD.search(turns.shown) else calls


def _in_a_row(turns: TemplateTurns, before: str, after: str) -> CallFormat:
    """Calls without brackets, each between tags, one after the other."""
    two = call_turn(turns, NAMES, as_text=False)
    separator = two.partition(SECOND)[0].rpartition(")")[2]
    field = {"open": before.strip(), "close": after.strip(), "content": "text", "repeats": True}
    return CallFormat(before.lstrip(), "(", f"){separator}", f"){after.rstrip()}", STYLE, {LISTED_CALLS: field})


def _between(before: str, after: str, turns: TemplateTurns, loose: bool) -> CallFormat:
    if before in ("", LOOSE[0]):
        return CallFormat("[", "(", "), ", ")]", STYLE, _bare(turns, loose))
    close = {"close": after} if after else {}
    field = {"open": before, "content": "text", "repeats": True, **close}
    return CallFormat(f"{before}[", "(", "), ", f")]{after}", STYLE, {LISTED_CALLS: field})


def _bare(turns: TemplateTurns, loose: bool) -> dict[str, Any]:
    """The field of calls that make up a whole answer: only their form tells them from text."""
    begin = rf"(?:\A|(?<={re.escape(turns.thought_end)}))" if turns.thought_end else r"\A"
    tags = "".join(rf"(?:{re.escape(tag)}{SPACE})?" for tag in LOOSE) if loose else ""
    field = {
        "open_pattern": rf"{begin}{SPACE}{tags}(?=\[{SPACE}{CALL_START}" + (rf"|\{{{SPACE}\"name\")" if loose else ")"),
        "content": "text",
        "repeats": True,
    }
    return {BARE_CALLS: field | ({"close": LOOSE[1]} if loose else {})}
