"""Marks for what xgrammar takes in a grammar's text but not in a schema: regexes, and counts kept while it matches.

A count that is written out has states to compile, each against the whole vocabulary: with 150,000 tokens, 20 seconds
for four strings of some hundred characters. A rule's `max_chars` has no such states. And a pattern becomes many rules,
at whose ends each token is tried: 30 ms, where a `Regex` takes microseconds. So patterns get marks, which rules replace
in the grammar's text. An escape counts as the characters it is written with. Plain Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from nbgen.engine.grammar import GrammarError

#: Marks are private characters of the last plane: one of these, plus the count or the regex's index.
_OF_CLASS, _OF_RULE, _OF_TEXT, _OF_REGEX = 0x100000, 0x104000, 0x108000, 0x10C000
#: The greatest count that a mark can say.
MOST = 0x3FFF
#: Regexes that there are marks for.
MOST_REGEXES = 0x3C00
#: A mark in JSON, as the character or as an escape of JSON, of a pattern or of a grammar.
_OWN = re.compile(r"[\U00100000-\U0010fbff]|\\u[dD][bB]([c-eC-E].|[fF][^fF])|\\U0010(?![fF][c-fC-F])")
_MARK = re.compile(
    r'(?P<set>\[(?:\\.|[^\]\\])*\]) "\\U0010(?P<of_class>[0-3]\w{3})"'
    r'|(?P<rule>\w+) "\\U0010(?P<of_rule>[4-7]\w{3})"'
    r'|"\\U0010(?P<of_text>[89ab]\w{3})"'
    r'|"\\U0010(?P<of_regex>(?:[c-e]\w|f[0-9ab])\w\w)"'
)
#: A mark anywhere in a grammar, or else a whole class or text, inside which nothing is a mark.
_MARK_OR_WHOLE = re.compile(rf'{_MARK.pattern}|\[(?:\\.|[^\]\\])*+\]|"(?:\\.|[^"\\])*+"')
#: An escape in a grammar's text; `code` is that of one with two digits.
_ESCAPE = re.compile(r"\\(?:x(?P<code>[0-9a-f]{2})|.)")
#: A rule that consists of one mark.
_ALONE = re.compile(rf"^(?P<name>\w+) ::= \(\((?:{_MARK.pattern})\)\)$", re.MULTILINE)
_LITERAL = r'"\U0010'
_PLAIN = r"[ !#-[\]-\ud7ff\ue000-\U0010ffff]"
_HEX = "[0-9a-fA-F]"
#: The text of a JSON string.
_TEXT = rf"""
counted_text ::= {_PLAIN}* counted_rest
counted_rest ::= "" | "\\" counted_escape {_PLAIN}* counted_rest
counted_escape ::= ["\\/bfnrt] | "u" counted_code {_HEX} {_HEX} | "u" counted_high "\\u" counted_low
counted_code ::= [0-9a-cefA-CEF] {_HEX} | [dD] [0-7]
counted_high ::= [dD] [89abAB] {_HEX} {_HEX}
counted_low ::= [dD] [c-fC-F] {_HEX} {_HEX}
"""


def mark_of_class(count: int, characters: str) -> str:
    """For use in a pattern: at most `count` characters of a class."""
    return f"{characters}{chr(_OF_CLASS + count)}"


def mark_of_rule(count: int, regex: str) -> str:
    """For use in a pattern: at most `count` characters of a regex that is no class, and the rest of the last match."""
    return f"{regex}{chr(_OF_RULE + count)}"


def mark_of_text(count: int) -> str:
    """For use in a pattern: at most `count` characters of a JSON string's text, with its escapes."""
    return chr(_OF_TEXT + count)


def mark_of_regex(regex: str, regexes: list[str]) -> str:
    """For use in place of a pattern: `regex`, which is added to the `regexes` that `with_rules` takes."""
    if regex not in regexes:
        regexes.append(regex)
    return chr(_OF_REGEX + regexes.index(regex))


def is_marked(text: str) -> bool:
    """Whether a pattern, or JSON with patterns in it, may have marks."""
    return _OWN.search(text) is not None


def with_rules(ebnf: str, source: str, regexes: Sequence[str] = ()) -> str:
    """The text of a grammar with rules in place of marks.

    Raises GrammarError where its `source` has characters that look like marks.
    """
    # xgrammar writes an escape of two digits, after which it would read a class's digits as more of its own.
    ebnf = _ESCAPE.sub(lambda escape: rf"\u00{escape['code']}" if escape["code"] else escape[0], ebnf)
    if _LITERAL not in ebnf:
        return ebnf
    if is_marked(source):
        raise GrammarError("it has characters of Unicode's last plane, which stand for counts and patterns here")

    def body(mark: re.Match[str]) -> str:
        number = int(mark[mark.lastgroup or ""], 16) & MOST
        if mark["of_regex"]:
            return f" ::= Regex({json.dumps(regexes[number], ensure_ascii=False)})"
        matched = f"{mark['set']}*" if mark["set"] else mark["rule"] or "counted_text"
        return f"[max_chars={number}] ::= {matched}"

    def rule(mark: re.Match[str]) -> str:
        return rules.setdefault(body(mark), f"marked_{len(rules)}") if mark.lastgroup else mark[0]

    rules: dict[str, str] = {}
    found = _ALONE.sub(lambda mark: mark["name"] + body(mark), ebnf)
    found = _MARK_OR_WHOLE.sub(rule, found)
    return "\n".join([found, *(name + rule for rule, name in rules.items()), _TEXT])
