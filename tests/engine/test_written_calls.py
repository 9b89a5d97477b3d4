"""Calls in Python's syntax and in JSON, read and written; hostile ones refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbgen.engine.written_calls import read_calls, written_arguments

KEYS = st.text("ab_é", min_size=1, max_size=5)
PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
VALUES = (
    PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=5), st.lists(PLAIN, max_size=2), max_size=2)
)
CALLS = st.lists(st.tuples(KEYS, st.dictionaries(KEYS, VALUES, max_size=2)), min_size=1, max_size=2)


@given(CALLS)
def test_what_is_written_is_read(calls: list[tuple[str, dict[str, Any]]]) -> None:
    each = [f"{name}({written_arguments(arguments)})" for name, arguments in calls]
    for written in (f"[{', '.join(each)}]", "\n".join(each)):
        assert read_calls(written) == calls
    nested = [{"type": "function", "function": {"name": name, "arguments": each}} for name, each in calls]
    assert read_calls(json.dumps(nested)) == calls
    as_json = [{"name": name, "arguments": arguments} for name, arguments in calls]
    assert read_calls(json.dumps(as_json)) == calls


@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_values_may_be_written_as_python_does(arguments: dict[str, Any]) -> None:
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert read_calls(f"[f({text})]") == [("f", arguments)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'It's \"so\", '1,2p' and so on\\n'", "It's \"so\", '1,2p' and so on\n"),
        ('"a "b" c"', 'a "b" c'),
        ('"a-b "c d=e" f +"', 'a-b "c d=e" f +'),
        ("'It\\'s \"so\", [1)]'", 'It\'s "so", [1)]'),
        ('"""a "b"\nc"""', 'a "b"\nc'),
        ("'''a'b'''", "a'b"),
        ('r"\\d"', "\\d"),
        ('"a\nb\\\nc\\x41\\u00e9\\U0001f600\\101\\q\\/"', "a\nbcAé😀A\\q/"),
        ("{'a': [true, False,], \"b\": null,}", {"a": [True, False], "b": None}),
        ("-1.5e3", -1500.0),
        ("+007", 7),
        ("1_000", 1000),
        (" [ ] ", []),
    ],
)
def test_literals(written: str, value: Any) -> None:
    assert read_calls(f" [f(from={written} , )] ") == [("f", {"from": value})]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("f()", ["f"]),
        ("[a.b(), get-news.2( ) ,]", ["a.b", "get-news.2"]),
        ("[f(a=1)\n,\ng(b='x')]", ["f", "g"]),
        ('{"name": "f", "parameters": {"a": 1}}; {"name": "g", "arguments": {}}', ["f", "g"]),
        ('{"name": "f"}{"name": "g"}', ["f", "g"]),
    ],
)
def test_several_calls(text: str, names: list[str]) -> None:
    assert [name for name, _ in read_calls(text)] == names


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[f]", "f(", "[f()", "f() g()", "[f()] and more", "text", "f(1)", "f(a)", "f(a=b)", "f(a=g())"),
        *("f(a=1, a=2)", "f(a=1 b=2)", "f(a='x)", "f(a=\"x')", "f(a={1: 2})", "f(a=(1, 2))", "f(a=2024-01-01)"),
        *("f(a=b'x')", "f(a=1j)", "f(a=__import__('os'))", "f(a=[1)", "f(**a)", "f(a=lambda: 1)", "f(a='\\U00ffffff')"),
        *("{}", "[{}]", "[1]", '{"name": 1}', '{"name": "f", "arguments": [1]}', '{"name": "f"', '[{"name": "f"}, 1]'),
        *('{"name": "f", "description": "so"}', "f(a='x' 'y')", 'f(a="x" + "y")', "f(a='x' % '%')"),
        *('f(a="x"; b="y")', 'f(a="x" b = "y")', "f(a='x'; b='y')"),
    ],
)
def test_all_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_calls(text)


@pytest.mark.parametrize(
    "hostile",
    [
        *("[" * 10**6, "[f(a=" + "[" * 10**6, "[f(a=" + "{'a':" * 10**5, "[{" * 10**5, '{"a":' * 10**5, "[f(a=1),f("),
        *("[f(a='" + "x" * 10**6, "[f(a='" + "\\" * 10**6, '[f(a="""' + '""x' * 10**6, "[f(a=" + "1" * 10**5 + ")]"),
        *("[f(" + "a" * 10**6, "[f(a=" + " " * 10**6, "f()" * 10**5, "[f(a=['x'" + ", 'x'" * 10**4),
    ],
    ids=range(14),
)
def test_hostile_text_is_refused(hostile: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_calls(hostile)
