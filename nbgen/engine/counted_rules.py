"""Counts of characters that xgrammar keeps while an answer is written, by rules with `max_chars`.

A count that is written out has states to compile, each against the whole vocabulary: of 150,000 tokens 20 seconds for
four strings of some hundred characters. So a pattern has a mark where a count would stand, and in the grammar's text a
rule takes the place of the mark. An escape counts as the characters it is written with. Plain Python.
"""

from __future__ import annotations

import re

from nbgen.engine.grammar import GrammarError

#: Marks are characters of the last plane, which are private: these, and as many further as are counted.
_OF_CLASS, _OF_RULE, _OF_TEXT = 0x100000, 0x104000, 0x108000
#: The greatest count that a mark can say.
MOST = 0x3FFF
#: One of them in JSON, or by a name that a pattern or grammar in it has.
_OWN = re.compile(r"[\U00100000-\U0010ffff]|\\u[dD][bB][c-fC-F]|\\U0010")
_MARK = re.compile(
    r'(?P<set>\[(?:\\.|[^\]\\])*\]) "\\U0010(?P<of_class>[0-3]\w{3})"'
    r'|(?P<rule>\w+) "\\U0010(?P<of_rule>[4-7]\w{3})"'
    r'|"\\U0010(?P<of_text>[89ab]\w{3})"'
)
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
    """In a pattern: so many characters of a class, at most."""
    return f"{characters}{chr(_OF_CLASS + count)}"


def mark_of_rule(count: int, regex: str) -> str:
    """In a pattern: what matches a regex of no class, of so many characters at most, and what belongs to the last."""
    return f"{regex}{chr(_OF_RULE + count)}"


def mark_of_text(count: int) -> str:
    """In a pattern: so many characters, at most, of the text of a JSON string, with its escapes."""
    return chr(_OF_TEXT + count)


def is_marked(text: str) -> bool:
    """Whether a pattern, or JSON with patterns in it, may have marks."""
    return _OWN.search(text) is not None


def counted(ebnf: str, source: str) -> str:
    """The text of a grammar with rules in the places of marks.

    Raises GrammarError where what it was made of has characters that look like marks.
    """
    if _LITERAL not in ebnf:
        return ebnf
    rules: dict[str, str] = {}

    def rule(mark: re.Match[str]) -> str:
        count = int(mark[mark.lastgroup or ""], 16) & MOST
        matched = f"{mark['set']}*" if mark["set"] else mark["rule"] or "counted_text"
        return rules.setdefault(f"[max_chars={count}] ::= {matched}", f"counted_{len(rules)}")

    found = _MARK.sub(rule, ebnf)
    if _LITERAL in found or is_marked(source):
        raise GrammarError("it counts characters, and has some of Unicode's last plane itself: leave those out")
    return "\n".join([found, *(name + body for body, name in rules.items()), _TEXT])
