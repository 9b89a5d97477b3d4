"""Patterns and lengths of a schema's strings and names are enforced, however JSON writes them, or refused."""

import json
import re
from typing import Any

import pytest
import xgrammar

from nbgen.engine.grammar import Grammar, GrammarError
from nbgen.engine.grammar_xgrammar import XGrammarBackend
from tests.engine.test_xgrammar_schema import BYTES, CLOSED, check_enforced, check_refused

#: Whose tokens are characters by their numbers.
LATIN = XGrammarBackend(xgrammar.TokenizerInfo([chr(code) for code in range(0x180)]), [])
#: A schema, values that it takes, values that it does not.
ENFORCED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a group that may be left out": (
        {"type": "string", "pattern": r"^a(-[0-9]+)?([)?]b+)?$"},
        ["a", "a-12", "a)bb", "a-1?b"],
        ["a12", "abb", "a-", "a?"],
    ),
    "the greatest length": ({"type": "string", "maxLength": 3}, ["", 'a"b', "\n\\\t"], ["abcd", '"""\n']),
    "a great length": ({"type": "string", "maxLength": 501}, ["a" * 501, "", '"é\n' * 50], ["a" * 502, "\n" * 502]),
    "a great length of what is anywhere": (
        {"type": ["object", "string"], "maxLength": 30, "additionalProperties": {"$ref": "#"}},
        [{"a": {"b": "c" * 30}, "d": "\n" * 15}],
        ["a" * 31, {"a": {"b": "c" * 31}}],
    ),
    "a great length of groups": (
        {"type": "string", "pattern": '^(ab|cd"|e{3})*$', "maxLength": 60},
        ["ab" * 29, 'cd"' * 14, ""],
        ["ab" * 31, 'cd"' * 21, "e" * 63, "e" * 59],
    ),
    "great counts of a class": (
        {"type": "string", "pattern": "^a[a-z]{0,30}b{2,40}.{0,50}a$"},
        ["abba", "a" + "c" * 30 + "bb" + "b" * 38 + "c" * 50 + "a"],
        ["abb", "a" + "c" * 31 + "bba", "abbcc" + "c" * 50 + "a", "abb\na"],
    ),
    "a small length": ({"type": "string", "maxLength": 24}, ["a" * 24, '"' * 24], ["a" * 25, '"' * 25]),
    "lengths": (
        {"type": "string", "minLength": 150, "maxLength": 300},
        ["a" * 150, "b" * 300],
        ["a" * 149, "a" * 301],
    ),
    "a pattern found anywhere": ({"type": "string", "pattern": "b"}, ["b", 'a"b\n'], ["a"]),
    "a pattern of a beginning": ({"type": "string", "pattern": "^https?://"}, ["http://", "https://a"], [" http://"]),
    "a pattern of either end": ({"type": "string", "pattern": "^$|^a|(b$)"}, ["", "ac", "cb"], ["ca", "bc"]),
    "a pattern of what is escaped": (
        {"type": "string", "pattern": r'^C:\\["\n]x?$'},
        ['C:\\"', "C:\\\nx"],
        ["C:x", "C:\\x"],
    ),
    "a pattern without quotes": ({"type": "string", "pattern": '^[^"]*$'}, ["", "a\\\n"], ['"', 'a"']),
    "a pattern without noughts": ({"type": "string", "pattern": r"^[^\x00]{1,90}$"}, ["a" * 90], ["", "\0", "a" * 91]),
    "a pattern of either case": ({"type": "string", "pattern": "(?i)^ab[c-d]$"}, ["aBC"], ["abe"]),
    "a pattern of ASCII with a quote": ({"type": "string", "pattern": '^("|[a-z])+$'}, ['"', 'a"b'], ["", "A"]),
    "a pattern and lengths": (
        {"type": "string", "pattern": "^[a-z][a-z0-9-]*$", "minLength": 2, "maxLength": 5},
        ["ab", "a-123"],
        ["a", "abcdef", "1a"],
    ),
    "names that begin": (
        {"type": "object", "patternProperties": {"^S_": {"type": "string"}, "^I_": {"type": "integer"}}, **CLOSED},
        [{"S_25": "x", "I_0": 1}],
        [{"S_0": 1}, {"x": 1}],
    ),
    "names with such a group": (
        {"type": "object", "patternProperties": {"^a(-[0-9]+)?$": {"type": "integer"}}, **CLOSED},
        [{"a": 1, "a-12": 2}],
        [{"a12": 1}],
    ),
    "a format and its length": (
        {"type": "string", "format": "date", "maxLength": 10, "minLength": 10},
        ["2024-01-01"],
        ["2024-01-01Z", "2024-01-1", ""],
    ),
    "an address as pydantic writes it": (
        {"type": "string", "format": "uri", "minLength": 1, "maxLength": 600},
        ["https://my-site.example.com:8080/a/b?c=d%20e", "http://localhost", "http://10.0.0.1/"],
        ["http://a.b/" + "c" * 590, ""],
    ),
    "a pattern beside a definition of any name": (
        {"$defs": {"a/b~c%20": {}}, "type": "array", "items": {"type": "string", "pattern": "^a+$"}},
        [["a", "aa"]],
        [["b"]],
    ),
    "the least length": ({"type": "string", "minLength": 2}, ['ab"\n', "ab\\é😀"], ["a", ""]),
    "groups of a pattern": (
        {"type": "string", "pattern": r"^(?:ab)[(?!]\(?=$"},
        ["ab!(=", "ab?="],
        ["ab", "ab="],
    ),
    "a class that reads like a group": ({"type": "string", "pattern": "^[(?<a]$"}, ["(", "a"], ["P"]),
    "a count of carets": ({"type": "string", "pattern": r"^[\^a-c]{1,50}$"}, ["^", "a^"], ["_", "A"]),
    "a bracket before a class": (
        {"type": "string", "pattern": r"^\[[0-9]\]\([a-zé]+\)$"},
        ["[5](ab)"],
        ["5", "[5]", "5](a)"],
    ),
    "a bracket before what is counted": (
        {"type": "string", "pattern": r'^"\[[0-9]{1,50}\]$'},
        ['"[1]', f'"[{"1" * 50}]'],
        ["1", '"[]', f'"[{"1" * 51}]'],
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "what looks like a count": ({"properties": {"a": {"maxLength": 50}, "b": {"const": "\U00100032"}}}, "last plane"),
    "too great a count": ({"type": "string", "pattern": "^[a-z]*$", "maxLength": 10**6}, "at most"),
    "what is too long without what is counted": ({"pattern": "^a{0,50}b*$", "maxLength": 30}, "could be counted"),
    "what has no end in a group": ({"pattern": "^(a*)b*$", "maxLength": 30}, "could be counted"),
    "a pattern that looks ahead": ({"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]{3}$"}, "looks around"),
    "a pattern that looks away": ({"properties": {"a": {"pattern": r"[)]\)(?!a)b"}}}, "looks around"),
    "a pattern that looks back": ({"pattern": "(?<=a)b|(?<!a)c"}, "looks around"),
    "a pattern that repeats itself": ({"pattern": r"(a)\1"}, "refers to a group"),
    "a name that looks ahead": ({"patternProperties": {"(?!a)b": {}}}, "looks around"),
    "names that look ahead": ({"propertyNames": {"pattern": "(?=a)a"}}, "looks around"),
    "a pattern that ends in its midst": ({"pattern": "a$b"}, "an anchor"),
    "a pattern whose lengths are anyhow": ({"pattern": "^a+(-a+)*$", "maxLength": 9}, "no place where its lengths"),
    "a pattern of other lengths": ({"pattern": "^a{9}$", "maxLength": 8}, "no text of such a length"),
    "names of two patterns": ({"patternProperties": {"^a[a-z]": {"type": "null"}, "b$": {}}}, "may be of one name"),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_what_a_text_must_be_is_enforced(name: str) -> None:
    check_enforced(*ENFORCED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_held_to_is_refused_in_words(name: str) -> None:
    check_refused(*REFUSED[name])


@pytest.mark.parametrize("regex", [r"[\^b]", r"[\^-b]", r"\^|b", r"(?:[b\^]){1,2}"])
def test_a_caret_that_is_escaped_negates_nothing(regex: str) -> None:
    compiled = BYTES.load(BYTES.compile(Grammar("regex", regex)))
    assert compiled.matcher().num_allowed([ord("["), 0]) == 0
    for character in "^b":
        compiled.matcher().accept(ord(character))


@pytest.mark.parametrize("regex", ["\n1b", r"a?\n1b", r"\n[0-9]b", r"[\n1b]{3}", r"[\x00-\n]1b|\tff"])
def test_a_control_character_ends_before_a_digit(regex: str) -> None:
    matcher = BYTES.load(BYTES.compile(Grammar("regex", regex))).matcher()
    for character in "\n1b":
        matcher.accept(ord(character))


@pytest.mark.parametrize("count", ["", "{1,9}", "{1,90}"])
@pytest.mark.parametrize("those", ["[\x1f2-3]", "[^ -1]", "[é2]", "[À-ÿa-c]", "[\x7f2]", r"[\\x2]", "[\\0-\x1f2]"])
def test_a_character_ends_before_a_digit_in_a_class(those: str, count: str) -> None:
    """Also where the count is great, and xgrammar reads its own text of the class."""
    compiled = LATIN.load(LATIN.compile(Grammar("regex", f"{those}{count}!")))
    for code in range(0x180):
        accept = compiled.matcher().accept
        try:
            found = [accept(code), accept(ord("!"))][-1]
        except GrammarError:
            found = False
        assert found == bool(re.fullmatch(those, chr(code))), code


@pytest.mark.parametrize("options", [{}, {"minLength": 2}, {"pattern": "^.{1,9999}$"}, {"pattern": "^(ab|cd)*$"}])
def test_many_great_lengths_have_few_states(options: dict[str, Any]) -> None:
    """Each of them takes long to compile, and room, with a large vocabulary."""
    properties = {f"p{length}": {"type": "string", "maxLength": length, **options} for length in range(100, 1000, 100)}
    schema = {"type": "object", "properties": properties}
    part = {"type": "json_schema", "style": "qwen_xml", "json_schema": schema}
    for grammar in (
        Grammar("json_schema", json.dumps(schema)),
        Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": part})),
        Grammar("regex", "|".join(f"[a-z]{{3,{length}}}" for length in range(100, 1000, 100))),
    ):
        assert BYTES.load(BYTES.compile(grammar)).num_bytes < 200_000


@pytest.mark.parametrize("schema", [{"maxLength": 1}, {"maxLength": 90}, {"pattern": "^[^x]$"}, {"minLength": 1}])
def test_what_is_no_character_of_utf8_is_none_of_a_string(schema: dict[str, Any]) -> None:
    backend = XGrammarBackend(xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)]), [])
    compiled = backend.load(backend.compile(Grammar("json_schema", json.dumps({"type": "string", **schema}))))
    for text in ("é", "ࠀ", "\ud7ff", "\ue000", "𐀀", "\U0010ffff"):
        assert compiled.matcher().num_allowed(f'"{text}'.encode()) == 1 + len(text.encode())
    for wrong in (b"\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80"):
        assert compiled.matcher().num_allowed(b'"' + wrong) <= len(wrong)
