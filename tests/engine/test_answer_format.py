"""How models write calls and thoughts, read off their templates; and answers of such models, read in their parts."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from nbgen.engine.answer_format import AnswerFormat
from nbgen.messages import AnswerPart
from tests.chat_templates import CALLS, PYTHONIC, THOUGHT, TURNS, template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    }
    for name in ("get_weather", "get-news.2")
]
WANTED = [("get_weather", {"city": 'São "Paulo" <b>', "days": 3}), ("get-news.2", {"city": "]}", "days": 0})]


def render(source: str, messages: list[dict[str, Any]], tools: Any = None, opens: bool = False, **more: Any) -> str:
    found, _ = render_jinja_template(
        [messages], tools=tools or None, chat_template=source, add_generation_prompt=opens, **more
    )
    return found[0]


def learned(source: str, *tokens: str, ends: Sequence[str] = ("<|end|>",)) -> AnswerFormat | None:
    """What is read off a template, for a model with these special tokens."""
    return AnswerFormat.of(lambda m, tools, opens: render(source, m, tools, opens), source, ends, tokens=tokens)


def answer(source: str, turn: dict[str, Any]) -> str:
    """What a model with this template would write for the turn."""
    text = render(source, [{"role": "user", "content": "?"}, {"role": "assistant", **turn}], TOOLS)
    return text.rpartition("<|assistant|>")[2].removesuffix("<|end|>")


def calls_of(count: int, *, as_text: bool = False) -> list[dict[str, Any]]:
    return [
        {"id": "a", "type": "function", "function": {"name": n, "arguments": json.dumps(a) if as_text else a}}
        for n, a in WANTED[:count]
    ]


def read(found: AnswerFormat, text: str, prompt: str = "", size: int = 1, thoughts: bool = True) -> list[AnswerPart]:
    parser = found.parser(prompt, TOOLS, thoughts=thoughts)
    pieces = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    return [p for i, piece in enumerate(pieces) for p in parser.feed(piece, last=i == len(pieces) - 1)]


def joined(parts: list[AnswerPart]) -> tuple[str, str, list[tuple[str, Any]]]:
    calls = [(p.tool_call.name, json.loads(p.tool_call.arguments)) for p in parts if p.tool_call]
    return "".join(p.content for p in parts), "".join(p.reasoning for p in parts), calls


@pytest.mark.parametrize("thought", ["", THOUGHT])
@pytest.mark.parametrize("way", CALLS)
def test_calls_are_read_as_the_template_writes_them(way: str, thought: str) -> None:
    source = template(CALLS[way], thought)
    found = learned(source)
    assert found is not None
    assert found.calls is not None
    assert found.calls.arguments_as_text == (way == "text")
    for count in (1, 2) if way != "bare" else (1,):
        text = answer(source, {"content": "", "tool_calls": calls_of(count, as_text=way == "text")})
        for size in (1, 7, 1000):
            assert joined(read(found, text, size=size)) == ("", "", WANTED[:count]), (text, size)


@pytest.mark.parametrize("way", [way for way in CALLS if way != "bare"])
def test_text_and_thoughts_stand_beside_calls(way: str) -> None:
    source = template(CALLS[way], THOUGHT)
    text = answer(source, {"reasoning_content": "I need\nboth.", "content": "One moment."})
    text += answer(source, {"content": "", "tool_calls": calls_of(2, as_text=way == "text")})
    assert joined(read(learned(source), text)) == ("One moment.", "I need\nboth.", WANTED)


def test_a_thought_may_have_been_opened_by_the_prompt() -> None:
    source = template(CALLS["objects"], THOUGHT)
    found, question = learned(source), [{"role": "user", "content": "<think>?"}]
    opened = render(source, question, opens=True, thinks=True)
    assert joined(read(found, "so and so\n</think>\n\nYes.", opened)) == ("Yes.", "so and so", [])
    closed = render(source, question, opens=True)
    assert joined(read(found, "Yes.", closed)) == ("Yes.", "", [])
    assert joined(read(found, "so", opened)) == ("", "so", [])


def test_what_announces_text_is_no_text() -> None:
    source = template(
        "", "{% if m.reasoning_content %}<hm>{{ m.reasoning_content }}<stop><|assistant|><final>{% endif %}"
    )
    found = learned(source)
    assert joined(read(found, "<hm>four?<stop><|assistant|><final>Four.")) == ("Four.", "four?", [])
    assert joined(read(found, "<final>Four.")) == ("Four.", "", [])
    assert joined(read(found, "Four.")) == ("Four.", "", [])


@pytest.mark.parametrize(("before", "after"), [("<think>", "</think>"), ("<|channel>thought\n", "<channel|>")])
def test_a_template_that_leaves_thoughts_out_is_known_by_its_tags(before: str, after: str) -> None:
    source = TURNS % ("", "") + f"{{# their thoughts: …{after} #}}"
    found = learned(source)
    for size in (1, 1000):
        assert joined(read(found, f"{before}a{after}b", size=size)) == ("b", "a", [])
        assert joined(read(found, f"{before}{after}b", size=size)) == ("b", "", [])
        assert joined(read(found, "b", f"{before}{after}", size=size)) == ("b", "", [])
    assert found.calls is None


def test_text_may_stand_between_tags_beside_thoughts_that_a_template_leaves_out() -> None:
    text = "<|START_TEXT|>{{ m.content or '' }}<|END_TEXT|>"
    found = learned((TURNS % ("", "")).replace("{{ m.content or '' }}", text) + "{# thoughts: …</think> #}")
    for size in (1, 1000):
        assert joined(read(found, "<think>a</think>\n<|START_TEXT|>b<|END_TEXT|>", size=size)) == ("b", "a", [])
        assert joined(read(found, "<|START_TEXT|>b<|END_TEXT|>", size=size)) == ("b", "", [])
        assert joined(read(found, "b", size=size)) == ("b", "", [])


def test_tags_that_only_the_words_of_a_template_tell_of_are_text() -> None:
    found, text = learned(TURNS % ("", "") + "{# …</think> <response></response> #}"), "<response>\n 1\n</response>\n"
    for size in (1, 1000):
        assert joined(read(found, f"See:\n{text}", size=size)) == (f"See:\n{text}", "", [])


@pytest.mark.parametrize("calls", ["", PYTHONIC])
def test_what_is_not_understood_is_text(calls: str) -> None:
    assert learned(template(calls)) is None
    assert learned("{{ raise_exception('no') }}") is None


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": }}\n</tool_call>',
        '<tool_call>{"nom": "f"}</tool_call>',
        "<tool_call>[1]</tool_call>",
        '<tool_call>\n{"name": "f", "argu',
    ],
)
def test_what_began_like_a_call_and_is_none_is_text(text: str) -> None:
    found = learned(template(CALLS["objects"]))
    good = answer(template(CALLS["objects"]), {"content": "", "tool_calls": calls_of(1)})
    content, _, calls = joined(read(found, f"{good} {text}"))
    assert calls == WANTED[:1]
    assert content.strip() in text
    assert len(content.strip()) >= len(text) - len("<tool_call></tool_call>\n\n")


def test_white_space_between_tags_may_be_missing() -> None:
    each = "<arg_key>{{ key }}</arg_key>\n<arg_value>{{ value }}</arg_value>\n"
    source = template(CALLS["tags"].replace("<parameter={{ key }}>\n{{ value }}\n</parameter>\n", each))
    text = "<tool_call><function=get_weather><arg_key>days</arg_key><arg_value>1</arg_value></function></tool_call>"
    assert joined(read(learned(source), text)) == ("", "", [("get_weather", {"days": 1})])


@pytest.mark.parametrize("text", ["true", "false"])
def test_an_attribute_may_say_what_is_no_text(text: str) -> None:
    each = '<p name="{{ key }}" string="true">{{ value }}</p>'
    source = template(CALLS["tags"].replace("<parameter={{ key }}>\n{{ value }}\n</parameter>\n", each))
    text = f'<tool_call>\n<function=get_weather>\n<p name="days" string="{text}">1</p></function>\n</tool_call>'
    assert joined(read(learned(source), text)) == ("", "", [("get_weather", {"days": 1})])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (
            "{a:{<|'|>b c<|'|>:[1,-2.5e3,<|'|>x\"y\n<|'|>,true,null]}}",
            {"a": {"b c": [1, -2500.0, 'x"y\n', True, None]}},
        ),
        ("{a-b.c$:None,d:False,e:celsius,f:[],g:{}}", {"a-b.c$": None, "d": False, "e": "celsius", "f": [], "g": {}}),
        ('{"a": "b:c", d:<|\'|><|\'|>}', {"a": "b:c", "d": ""}),
        ("{}", {}),
        ("()", {}),
        ("(a=<|'|>f(b=c), {d}<|'|>,e:{f:[1]})", {"a": "f(b=c), {d}", "e": {"f": [1]}}),
    ],
)
def test_arguments_with_marks_are_read(written: str, value: dict[str, Any]) -> None:
    found = learned(template(CALLS["marked"]))
    for size in (1, 1000):
        parts = read(found, f"<|tool_call>call:get-news.2{written}<tool_call|>", size=size)
        assert joined(parts) == ("", "", [("get-news.2", value)])


@pytest.mark.parametrize(
    "hostile", ["[" * 3000, '{"a":' * 3000, '"\\ud800"'], ids=["lists", "objects", "half a character"]
)
@pytest.mark.parametrize("way", CALLS)
def test_arguments_that_no_message_can_hold_fail_nobody(way: str, hostile: str) -> None:
    """Nested more deeply than JSON is read, or with half of a surrogate pair: text, but where tags hold any text."""
    source, arguments = template(CALLS[way], THOUGHT), {"city": "Rome", "days": 3}
    function = {"name": "get_weather", "arguments": json.dumps(arguments) if way == "text" else arguments}
    text = answer(source, {"content": "", "tool_calls": [{"function": function}]}).replace("3", hostile)
    for size in (7, 50, len(text)):
        parts = read(learned(source), text, size=size)
        assert msgspec.msgpack.encode(parts)
        told = "".join(part.content + (part.tool_call.arguments if part.tool_call else "") for part in parts)
        assert hostile in (told if way != "tags" else json.loads(told)["days"])


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_json_does_not_know_makes_no_call(number: str) -> None:
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {{"days": {number}}}}}\n</tool_call>'
    content, _, calls = joined(read(learned(template(CALLS["objects"])), text))
    assert calls == []
    assert number in content


@pytest.mark.parametrize("written", [r'{"\ud83d": "é\ude00"}', r'"{\"\ud83d\": \"é\ude00\"}"'])
def test_half_a_surrogate_pair_stays_the_escape_that_it_was(written: str) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>'
    parts = read(learned(template(CALLS["objects"])), text)
    assert [part.tool_call.arguments for part in parts] == [r'{"\ud83d": "é\ude00"}']
    msgspec.msgpack.encode(parts)


def test_a_name_with_half_a_surrogate_pair_is_none() -> None:
    text = r'<tool_call>{"name": "\ud83d", "arguments": {}}</tool_call>'
    content, _, calls = joined(read(learned(template(CALLS["objects"])), text))
    assert (calls, r"\ud83d" in content) == ([], True)


@pytest.mark.parametrize("size", [1, 1000])
def test_white_space_is_dropped_only_beside_a_thought_or_a_call(size: int) -> None:
    source = template(CALLS["objects"], THOUGHT)
    found, call = learned(source), answer(source, {"content": "", "tool_calls": calls_of(1)})
    assert joined(read(found, "    return x\n", size=size)) == ("    return x\n", "", [])
    assert joined(read(found, " \n", size=size)) == (" \n", "", [])
    assert joined(read(found, " of France", "<|assistant|>The capital", size=size))[0] == " of France"
    assert joined(read(found, "\n<think> a\n</think>\n b \n", size=size)) == ("b \n", "a", [])
    assert joined(read(found, f" a\n{call}\n b\n", size=size)) == (" ab\n", "", WANTED[:1])
    assert joined(read(found, " a</think>\n b ", "<|assistant|><think>\n", size=size)) == ("b ", "a", [])


def test_white_space_before_what_is_no_call_is_text() -> None:
    fields = {"content": {"content": "text"}, "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"}}
    source = template("")
    found = AnswerFormat.of(
        lambda m, t, o: render(source, m, t, o), source, own={"start_anchor": ">", "fields": fields}
    )
    for size in (1, 7, 1000):
        assert joined(read(found, " a\n<call>[1]</call> b\n", size=size)) == (" a\n<call>[1]</call> b\n", "", [])


@pytest.mark.parametrize("way", CALLS)
def test_a_function_that_is_not_there_is_text_unless_others_are(way: str) -> None:
    source, (known, other) = template(CALLS[way], THOUGHT), calls_of(2, as_text=way == "text")
    other = {**other, "function": {**other["function"], "name": "get_other"}}
    found, wanted = learned(source), {"name": "get_other", "arguments": WANTED[1][1]}
    for size in (1, 7, 1000):
        parts = read(found, answer(source, {"content": "", "tool_calls": [other]}), size=size)
        text, _, calls = joined(parts)
        assert calls == []
        assert text.replace("parameters", "arguments").replace('"0"', "0") == json.dumps(wanted)
        if way in ("list", "python", "row", "keyed"):  # of one list, those that can be called
            parts = read(found, answer(source, {"content": "", "tool_calls": [known, other]}), size=size)
            assert joined(parts) == ("", "", WANTED[:1])


def test_thoughts_that_nobody_wants_apart_are_text() -> None:
    found = learned(template(CALLS["objects"], THOUGHT))
    assert joined(read(found, "<think>a</think>b", thoughts=False))[0] == "<think>a</think>b"


def test_a_whole_answer_is_read_for_its_calls_or_for_its_thoughts() -> None:
    source = template(CALLS["objects"], THOUGHT)
    found = learned(source)
    assert found is not None
    text = answer(source, {"reasoning_content": "Hm.", "content": "Yes.", "tool_calls": calls_of(2)})
    content, reasoning, calls = joined(found.read(text, TOOLS))
    assert (content, reasoning, calls) == ("<think>\nHm.\n</think>\n\nYes.", "", WANTED)
    content, reasoning, calls = joined(found.read(text, []))
    assert (content[:4], reasoning, calls) == ("Yes.", "Hm.", [])
    assert '"get_weather"' in content


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>a</think>b", "b", "a"),
        ("a</think>b", "b", "a"),
        ("a", "a", ""),
        ("<think>a", "", "a"),
        ("a<think>b</think>c", "ac", "b"),
    ],
)
def test_an_answer_that_closes_a_thought_begins_within_it(text: str, content: str, reasoning: str) -> None:
    found = learned(template("", THOUGHT))
    assert found is not None
    assert joined(found.read(text, [])) == (content, reasoning, [])
    opening = learned(template("", THOUGHT).replace("{% if thinks %}", "{% if true %}"))
    assert opening is not None
    assert opening.opens_thought
    assert joined(opening.read("a", [])) == ("", "a", []), "the prompt opened it, and it never ended"
    assert joined(opening.read("<think>a</think>b", [])) == ("b", "a", [])


def test_a_response_template_that_came_with_the_model_is_used() -> None:
    fields = {"content": {"content": "text"}, "thinking": {"open": "{{", "close": "}}", "content": "text"}}
    own = {"start_anchor": "<|assistant|>", "fields": fields}
    source = template("")
    found = AnswerFormat.of(lambda m, t, o: render(source, m, t, o), source, own=own)
    assert joined(read(found, "{{hm}}yes", "<|user|>{{<|assistant|>")) == ("yes", "hm", [])
    assert found is not None
    assert found.has_thoughts
    assert joined(found.read("{{hm}}yes", [])) == ("yes", "hm", [])
