"""Calls that are not quite as a template writes them are read, and what only speaks of calls is text."""

import json
from typing import Any

import pytest

from tests.chat_templates import CALLS, SHOWN, THOUGHT, template
from tests.engine.test_answer_format import TOOLS, WANTED, answer, calls_of, joined, learned, read

#: What models write at times of a template's way, and the text that is no part of a call.
ODD = [
    ("bare", '{"type": "function", "name": "get_weather", "parameters": {"days": 1}}', ""),
    ("bare", '{"name": "get_weather", "arguments": {"days": 1}}', ""),
    ("objects", '<tool_call>{"parameters": {"days": 1}, "name": "get_weather"}</tool_call>', ""),
    ("list", '[TOOL_CALLS]{"name": "get_weather", "arguments": {"days": 1}} Well.', "Well."),
    ("tags", "Well.\n<function=get_weather>\n<parameter=days>\n1\n</parameter>\n</function>", "Well."),
    ("tags", "<function=get_weather>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>", ""),
    ("tags", "<function=get_weather>\n<parameter=days>\n1\n</parameter>\n</function>\nSo.", "So."),
    ("named", '[TOOL_CALLS]get_weather{"days": 1}', ""),
    ("named", '[TOOL_CALLS]get_weather[CALL_ID]a1[ARGS]{"days": 1}', ""),
    ("marked", "call:get_weather{days:1}<tool_call|>", ""),
    ("marked", "<|tool_call>call:get_weather{ days : 1 }", ""),
    ("marked", "<|tool_call>call:get_weather(days:1)<tool_call|>", ""),
    ("marked", "<|tool_call>call:get_weather( days = 1 )<tool_call|> Well.", "Well."),
    ("row", "<calls>get_weather(days=1)</calls>", ""),
]
#: What speaks of a function and calls none.
NO_CALLS = [
    ("bare", 'My tool is {"name": "get_weather", "description": "the weather"} and more.'),
    ("bare", '{"name": "get_weather"}'),
    ("marked", "So: <|tool_call>call:get_weather(see there)<tool_call|> so."),
    ("objects", 'Mine: <tool_call>{"name": "get_weather", "schema": 1}</tool_call> so.'),
    ("tags", "So: <function=example>\n<parameter=a>\nb\n</parameter>\n</function> so."),
    ("tags", "So: <function=example>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call> so."),
]


@pytest.mark.parametrize(("way", "text"), NO_CALLS)
def test_what_speaks_of_a_function_is_text(way: str, text: str) -> None:
    found = learned(template(CALLS[way]))
    for size in (1, 7, 1000):
        assert joined(read(found, text, size=size)) == (text, "", [])


def test_a_function_that_is_not_there_is_text_without_its_outer_tag_even_where_it_is_cut() -> None:
    text = "So: <function=example>\n<parameter=a>\nb"
    parts = learned(template(CALLS["tags"])).parser("", TOOLS, thoughts=True).feed(text, last=True, cut=True)
    assert joined(parts) == (text, "", [])


@pytest.mark.parametrize(("way", "text", "beside"), ODD)
def test_calls_are_read_that_are_not_quite_as_the_template_writes_them(way: str, text: str, beside: str) -> None:
    found = learned(template(CALLS[way]))
    for size in (1, 7, 1000):
        assert joined(read(found, text, size=size)) == (beside, "", [("get_weather", {"days": 1})])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{'x': [1, True], \"y\": None}", {"x": [1, True], "y": None}),
        ('{"x": [1, true], "y": null}', {"x": [1, True], "y": None}),
        ("[1]\n", [1]),
        ("{'x': f()}", "{'x': f()}"),
        ("Rome", "Rome"),
    ],
)
def test_lists_and_objects_in_tags_may_be_written_as_python_does(written: str, value: Any) -> None:
    types = {"anyOf": [{"type": "object"}, {"type": "array"}, {"type": "null"}]}
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": types, "b": {"type": "string"}}}}}]
    text = "".join(f"<parameter={key}>{written}</parameter>" for key in "ab")
    parser = learned(template(CALLS["tags"])).parser("", tools, thoughts=True)
    parts = parser.feed(f"<tool_call><function=f>{text}</function></tool_call>", last=True)
    (call,) = [part.tool_call for part in parts]
    assert json.loads(call.arguments)["a"] == value
    assert isinstance(json.loads(call.arguments)["b"], str)


def test_the_type_of_an_argument_may_be_told_elsewhere() -> None:
    defs = {
        "A": {"type": "object"},
        "B": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        "C": {"$ref": "#/$defs/C"},
    }
    properties = {"a": {"$ref": "#/$defs/A"}, "b": {"allOf": [{"$ref": "#/$defs/B"}]}, "c": {"$ref": "#/$defs/C"}}
    properties |= {"d": {"enum": [1, 2]}, "e": {"$ref": "elsewhere"}, "f": {"anyOf": 5, "$ref": "#/$defs/D"}}
    properties |= {
        "g": {},
        "h": {"type": ["string", "array"]},
        "i": {"anyOf": [{"type": "string"}, {"type": "object"}]},
    }
    tools = [{"function": {"name": "f", "parameters": {"properties": properties, "$defs": defs}}}]
    values = {"a": '{"x": 1}', "b": "null", "c": "1", "d": "2", "e": "1", "f": "1"}
    properties |= {"j": {"type": "string", "enum": ["x"]}}
    values |= {"g": "[1]", "h": "5", "i": "True", "j": " x\n"}
    text = "".join(f"<parameter={key}>{value}</parameter>" for key, value in values.items())
    parser = learned(template(CALLS["tags"])).parser("", tools, thoughts=True)
    parts = parser.feed(f"<tool_call><function=f>{text}</function></tool_call>", last=True)
    read_as = {**values, "a": {"x": 1}, "b": None, "d": 2, "g": [1], "j": "x"}
    assert joined(parts)[2] == [("f", read_as)]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\t", "\t"),
        (" ", " "),
        ("\n\t\n", "\t"),
        (",", ","),
        (" , ", ","),
        ("\n- ", "- "),
        ("-", "-"),
        ("a", " a"),
        (" x\n", "x"),
    ],
)
def test_white_space_that_a_listed_value_has_is_its_own(written: str, value: str) -> None:
    properties = {"by": {"enum": [",", "\t", " ", "- ", "-", " a", None]}}
    tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
    parser = learned(template(CALLS["tags"])).parser("", tools, thoughts=True)
    text = f"<tool_call><function=f><parameter=by>{written}</parameter></function></tool_call>"
    assert joined(parser.feed(text, last=True))[2] == [("f", {"by": value})]


@pytest.mark.parametrize("space", ["\n", ""])
@pytest.mark.parametrize("city", ["    return 1\n", "\n\n", "", " ", "\ta\r\n  b  "])
def test_white_space_beside_an_argument_is_its_own_but_for_the_templates(city: str, space: str) -> None:
    source = template(CALLS["tags"].replace(">\n{{ value }}\n</", f">{space}{{{{ value }}}}{space}</"))
    call = {"function": {"name": "get_weather", "arguments": {"city": city, "days": 1}}}
    text = answer(source, {"content": "", "tool_calls": [call]})
    for size in (1, 1000):
        assert joined(read(learned(source), text, size=size))[2] == [("get_weather", {"city": city, "days": 1})]


@pytest.mark.parametrize("way", ["objects", "tags", "list"])
def test_a_thought_that_nothing_ends_may_end_in_calls(way: str) -> None:
    source = template(CALLS[way], THOUGHT)
    found, calls = learned(source), answer(source, {"content": "", "tool_calls": calls_of(2)})
    for size in (1, 7, 1000):
        for text, prompt in ((f"<think>Hm.{calls}\n", ""), (f"Hm.{calls}", "<|assistant|><think>\n")):
            said, thought, called = joined(read(found, text, prompt, size=size))
            assert (said, thought.strip(), called) == ("", f"Hm.{calls}", WANTED)
        for more in (" So.", "</think>"):
            assert joined(read(found, f"<think>Hm.{calls}{more}", size=size))[2] == []
        parts = found.parser("", TOOLS, thoughts=True).feed(f"<think>Hm.{calls}", last=True, cut=True)
        assert joined(parts)[2] == []


#: A text as an argument, and what it is read as where a template tells of sections, and where not.
TEXTS = [
    ("A <b>", "A <b>", "A <b>"),
    ("use <parameter=x> here", *["use <parameter=x> here"] * 2),
    ("a\n<parameter=x> b", *["a\n<parameter=x> b"] * 2),
    ("a\n<parameter=x>\nb", *["a\n<parameter=x>\nb"] * 2),
    ("<![CDATA[a</parameter>\n<parameter=days>\n9\n]]>", "a</parameter>\n<parameter=days>\n9\n", None),
    ("<![CDATA[a]]>", "a", "<![CDATA[a]]>"),
    ("<![CDATA[a]]> b", *["<![CDATA[a]]> b"] * 2),
]


@pytest.mark.parametrize("end", ["\n</parameter>", ""])
@pytest.mark.parametrize(("text", "quoted", "plain"), TEXTS)
def test_an_argument_ends_where_its_tag_does_or_the_next_begins(text: str, quoted: str, plain: str, end: str) -> None:
    arguments = f"<parameter=city>\n{text}{end}\n<parameter=days>\n1\n</parameter>"
    for told, city in (("Write <![CDATA[text]]>.", quoted), ("", plain)):
        found = learned(template(CALLS["tags"], shown=told + SHOWN))
        calls = joined(read(found, f"<tool_call>\n<function=get_weather>\n{arguments}\n</function>\n</tool_call>"))[2]
        assert city is None or calls == [("get_weather", {"city": city, "days": 1})]


@pytest.mark.parametrize(
    ("way", "separator"), [("bare", "; "), ("bare", "\n"), ("tags", "\n"), ("marked", "<tool_call|>\n")]
)
def test_several_calls_without_what_begins_them(way: str, separator: str) -> None:
    found = learned(template(CALLS[way]))
    each = {
        "bare": '{"name": "get_weather", "parameters": {"days": %d}}',
        "tags": "<function=get_weather>\n<parameter=days>\n%d\n</parameter>\n</function>",
        "marked": "call:get_weather{days:%d}",
    }[way]
    for size in (1, 7, 1000):
        text = separator.join(each % days for days in (1, 2))
        assert joined(read(found, text, size=size)) == ("", "", [("get_weather", {"days": days}) for days in (1, 2)])
