"""Calls in answers that were cut: told by name with the arguments so far, never as the text that templates write."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nbgen.engine import answer_parser
from nbgen.engine.answer_format import AnswerFormat
from nbgen.engine.cut_calls import read_begun
from nbgen.messages import AnswerPart
from tests.chat_templates import BARE_PYTHON, CALLS, CHANNELS, THOUGHT, template
from tests.engine.test_answer_format import TOOLS, WANTED, answer, calls_of, learned
from tests.soak import TIMES

#: What calls are made of, and what makes none of them.
CALL = [
    "get_weather",
    '{"name": "',
    '", "arguments": ',
    '{"city": "',
    "Ro",
    "city=",
    "<parameter=city>",
    "</parameter>",
]
PIECES = [
    *CALL,
    r"\q",
    r"\ud800",
    "[" * 1200,
    *("[" * depth + "]" * depth for depth in (900, 930, 960, 1000)),
    "9" * 5000,
    "1e999",
    "NaN",
    "\n",
    '"',
    "'",
    "}",
    "]",
    "(",
    "\0",
    "<tool_call>",
]
WAYS = [way for way in CALLS if way != "bare"]
SAID = "One moment."
IN_A_CHANNEL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"


def read(found: AnswerFormat, text: str, size: int = 1000, prompt: str = "", cut: bool = True) -> list[AnswerPart]:
    parser = found.parser(prompt, TOOLS, thoughts=True)
    pieces = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    return [p for i, piece in enumerate(pieces) for p in parser.feed(piece, last=i == len(pieces) - 1, cut=cut)]


def told(parts: list[AnswerPart]) -> tuple[str, list[tuple[str, str]], list[tuple[str, str]]]:
    """The text, the calls that are whole, and the one that is cut."""
    calls = [(p.tool_call.name, p.tool_call.arguments, p.cut) for p in parts if p.tool_call]
    whole, cut = ([each[:2] for each in calls if each[2] is wanted] for wanted in (False, True))
    assert [each[2] for each in calls] == [False] * len(whole) + [True] * len(cut)
    return "".join(part.content for part in parts), whole, cut


def written(way: str, count: int) -> str:
    return answer(template(CALLS[way]), {"content": "", "tool_calls": calls_of(count, as_text=way == "text")})


@pytest.mark.parametrize("way", ["objects", "list", "text"])
def test_a_cut_call_that_is_nested_too_deeply_to_be_read_is_told_as_it_is_written(way: str) -> None:
    call, deep = written(way, 1), '{"city": ' + "[" * 1200
    begun = call[: call.index("{", call.index('"arguments"'))] + deep
    assert told(read(learned(template(CALLS[way], THOUGHT)), begun)) == ("", [], [("get_weather", deep)])


@pytest.mark.parametrize("way", WAYS)
def test_wherever_an_answer_is_cut_its_calls_are_told_as_far_as_they_go(way: str) -> None:
    found, call = learned(template(CALLS[way], THOUGHT)), written(way, 2)
    expected = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in WANTED]
    numbers = []
    for end in range(1, len(call) + 1):
        content, whole, cut = told(read(found, SAID + call[:end]))
        assert told(read(found, SAID + call[:end], size=1)) == (content, whole, cut), call[:end]
        assert len(content) < len(SAID) + 4, "of a tag there are three characters at most, which might be text"
        assert whole == expected[: len(whole)]
        for name, arguments in cut:
            assert name == WANTED[len(whole)][0]
            assert expected[len(whole)][1].startswith(arguments) or way == "text", arguments
            assert not arguments.endswith("0}")
        numbers.append(len(whole) + len(cut))
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2}


@pytest.mark.parametrize(
    ("way", "text", "arguments"),
    [
        ("objects", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Ro', '{"city": "Ro'),
        ("objects", '<tool_call>\n{"name": "get_weather", "arg', ""),
        ("objects", '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"Ro', '{"city": "Ro'),
        ("list", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city', '{"city'),
        ("named", '[TOOL_CALLS]get_weather[ARGS]{"city": [', '{"city": ['),
        ("tags", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<para", '{"city": "Rome"'),
        ("python", '<|tool_call_start|>[get_weather(city="Rome", da', '{"city": "Rome"'),
        ("bare", '{"name": "get_weather", "parameters": {"city": "Ro', '{"city": "Ro'),
        ("marked", "<|tool_call>call:get_weather(city=<|'|>Ro (a)", '{"city": "Ro (a)'),
    ],
)
def test_arguments_are_those_that_came(way: str, text: str, arguments: str) -> None:
    found = learned(template(CALLS[way], THOUGHT))
    assert told(read(found, text)) == ("", [], [("get_weather", arguments)])
    assert told(read(found, text, cut=False))[2] == [], "a model that ends there has written no call"


def test_arguments_that_are_all_there_make_a_whole_call() -> None:
    for end in ("", "}", "}\n</tool_"):
        text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}' + end
        assert told(read(learned(template(CALLS["objects"])), text)) == ("", [("get_weather", '{"city": "Rome"}')], [])


def test_a_call_in_a_channel_is_told_as_well() -> None:
    found = learned(CHANNELS, ends=["<|return|>", "<|call|>"])
    thought = "<|channel|>analysis<|message|>hm<|end|>"
    call = f'<|start|>assistant{IN_A_CHANNEL}{{"city": "Ro'
    parts = read(found, thought + call, prompt="<|start|>assistant")
    assert (parts[0].reasoning, told(parts)) == ("hm", ("", [], [("get_weather", '{"city": "Ro')]))
    for end in range(4, call.index("{")):
        assert told(read(found, thought + call[:end], prompt="<|start|>assistant"))[0] == ""


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (CALLS["objects"], "if a <"),
        (CALLS["objects"], "a <to"),
        (CALLS["bare"], '{"names": ["Anna", "get'),
        (CALLS["bare"], '{"name": "Anna", "age": 3'),
        (BARE_PYTHON, "[1, 2"),
        (BARE_PYTHON, "[print("),
        (BARE_PYTHON, "[get_wea"),
        (CALLS["marked"], "a call"),
        (CALLS["marked"], "so call:f{a, and more"),
    ],
)
def test_text_that_is_cut_stays_text(calls: str, text: str) -> None:
    assert told(read(learned(template(calls, THOUGHT)), text)) == (text, [], [])


@pytest.mark.parametrize("way", WAYS)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=9))
@example(pieces=[r"\q", '", "arguments": '])
@settings(max_examples=30 * TIMES)
def test_whatever_is_cut_is_read(way: str, pieces: list[str]) -> None:
    """An answer that is ended from outside has nobody who would hear of an error."""
    found = learned(template(CALLS[way], THOUGHT))
    begun = written(way, 1)
    for text in ("".join(pieces), begun[: begun.index("get_weather")] + "".join(pieces)):
        read(found, text)


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("way", [*WAYS, "channel"])
def test_arguments_that_are_read_and_cannot_be_written_are_told(way: str, cut: bool) -> None:
    """Just short of what is nested too deeply to be read. How deeply that is depends on the caller's own stack."""
    if way == "channel":
        found, call = learned(CHANNELS, ends=["<|return|>", "<|call|>"]), f'{IN_A_CHANNEL}{{"city": 3}}'
    else:
        found, call = learned(template(CALLS[way], THOUGHT)), written(way, 1)
    for depth in range(850, 1000, 5):
        nested = "[" * depth + "]" * depth
        parts = read(found, call.replace("3", nested)[: -1 if cut else None], size=40, cut=cut)
        shown = "".join(part.content + (part.tool_call.arguments if part.tool_call else "") for part in parts)
        assert nested in shown or (way in ("python", "row") and "city" in shown), depth


def test_whatever_reading_a_cut_call_raises_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_parser, "read_begun", None)
    text = '<tool_call>\n{"name": "get_weather", "arg'
    assert "get_weather" in told(read(learned(template(CALLS["objects"])), text))[0]


def test_a_function_that_is_not_there_is_not_called() -> None:
    text = '<tool_call>\n{"name": "get_other", "arguments": {"city": "Ro'
    assert told(read(learned(template(CALLS["objects"])), f"a{text}")) == ("a", [], [])


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("end", ["a", ""])
def test_much_white_space_holds_up_nobody(way: str, end: str) -> None:
    text = "a" + " " * 20_000 + end
    began = time.process_time()
    assert told(read(learned(template(CALLS[way], THOUGHT)), text)) == (text, [], [])
    assert time.process_time() - began < 5


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("way", CALLS)
def test_much_that_opens_and_closes_holds_up_nobody(way: str, cut: bool) -> None:
    began = time.process_time()
    parts = read(learned(template(CALLS[way], THOUGHT)), "<think></think>" * 2000, size=30_000, cut=cut)
    assert told(parts)[1:] == ([], [])
    assert time.process_time() - began < 2


def test_a_thought_that_is_cut_is_a_thought() -> None:
    found = learned(template(CALLS["objects"], THOUGHT))
    for text, prompt in (("<think>a <tool_call>", ""), ("a <tool_call>", "<|assistant|><think>\n")):
        parts = read(found, text, prompt=prompt)
        assert "".join(part.reasoning for part in parts) == "a <tool_call>"
        assert told(parts) == ("", [], [])


@pytest.mark.parametrize(
    "name", ['"name": "f"', '"tool_call_id": "0", "tool_name": "f"', '"f": {"a": 1}}, {"name": "g"']
)
def test_a_name_may_be_called_otherwise(name: str) -> None:
    first, *_ = read_begun(None, f'[{{{name}, "parameters": {{"a": 1')
    assert (first.name, first.arguments.startswith('{"a": 1')) == ("f", True)
