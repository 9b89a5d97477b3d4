"""Calls in Python's syntax: which templates are known to have them, and which answers are read so."""

import json

import pytest

from nbgen.engine.python_calls import PAIR
from nbgen.engine.template_messages import template_message
from nbgen.messages import ChatMessage, ToolCall
from tests.chat_templates import BARE_PYTHON, CALLS, LOOSE, THOUGHT, TOLD, template
from tests.engine.test_answer_format import WANTED, joined, learned, read

BOTH = '[get_weather(city=\'São "Paulo" <b>\', days=3), get-news.2(city="]}", days=0)]'
JSON = '{"name": "get_weather", "parameters": ' + json.dumps(WANTED[0][1]) + "}"
#: Templates that are known, and the model's special tokens.
KNOWN = {
    "written": (template(BARE_PYTHON), ()),
    "told": (template("", shown=TOLD), ()),
    "beside JSON": (template(CALLS["objects"], shown=TOLD), ()),
    "loose": (template(LOOSE), ()),
    "loose, told": (template(LOOSE, shown=TOLD), ()),
    "tokens": (template(""), PAIR),
    "thoughts": (template(BARE_PYTHON, THOUGHT), ()),
}


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("way", KNOWN)
def test_a_list_of_calls_is_an_answer(way: str, size: int) -> None:
    source, tokens = KNOWN[way]
    found = learned(source, *tokens)
    text = f"{PAIR[0]}{BOTH}{PAIR[1]}" if tokens else BOTH
    assert joined(read(found, f"\n{text}\n", size=size)) == ("", "", WANTED)


def test_what_the_template_writes_beside_is_read_too() -> None:
    found = learned(KNOWN["beside JSON"][0])
    text = '<tool_call>{"name": "get_weather", "arguments": {"days": 3}}</tool_call>'
    assert joined(read(found, text)) == ("", "", [("get_weather", {"days": 3})])
    assert found.calls.style == "json"


@pytest.mark.parametrize("way", ["loose", "loose, told"])
@pytest.mark.parametrize("call", [BOTH, JSON])
def test_tags_may_stand_around_a_call_or_not(call: str, way: str) -> None:
    found = learned(KNOWN[way][0])
    wanted = WANTED[: 2 if call == BOTH else 1]
    for text in (call, f"<|python_start|>{call}<|python_end|>", f"<|python_start|><|python_end|>{call}"):
        for size in (1, 1000):
            assert joined(read(found, text, size=size)) == ("", "", wanted), text
    code = "<|python_start|>print(1)<|python_end|>"
    assert joined(read(found, code)) == (code, "", [])


def test_thoughts_may_come_before() -> None:
    found = learned(KNOWN["thoughts"][0])
    assert joined(read(found, f"<think>both, [f(a=1)]</think>\n{BOTH}")) == ("", "both, [f(a=1)]", WANTED)


def test_text_may_stand_beside_calls_between_tokens() -> None:
    found = learned(*KNOWN["tokens"][:1], *PAIR)
    text = f"Well. {PAIR[0]}{BOTH}{PAIR[1]} I look."
    for size in (1, 1000):
        said, _, calls = joined(read(found, text, size=size))
        assert (said.replace(" ", ""), calls) == ("Well.Ilook.", WANTED)
    as_json = f'{PAIR[0]}[{{"name": "get_weather", "arguments": {{"days": 3}}}}]{PAIR[1]}'
    assert joined(read(found, as_json))[2] == [("get_weather", {"days": 3})]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "[1, 2]",
            "[a link](address)",
            "[get_time(city='x')]",
            "[get_weather(city=x)]",
            "[get_weather(city='x')",
            "[",
        ),
        *(
            "Say [get_weather(city='x')]",
            "[get_weather(city='x')] I look.",
            "[get_weather('x')]",
            "get_weather(days=3)",
        ),
        *(
            "[get_weather(days=1e999)]",
            "[get_weather(days=" + "[" * 3000,
            "[get_weather(city='" + "x" * 100_000,
            "[" + "f" * 50_000,
        ),
    ],
)
def test_what_only_looks_like_calls_is_text(text: str) -> None:
    found = learned(KNOWN["thoughts"][0])
    for size in (1 if len(text) < 1000 else 997, 7 if len(text) < 1000 else 9973, len(text)):
        assert joined(read(found, text, size=size)) == (text, "", [])


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        (template(""), ()),
        (template(""), PAIR[:1]),
        (template("", shown=""), PAIR),
        (template(CALLS["text"], shown=""), PAIR[:1]),
        (template("{% if m.tool_calls %}<calls>{{ m.tool_calls[0].function.name }}</calls>{% endif %}"), PAIR),
        (template(f"Calls: {BARE_PYTHON}"), ()),
        (template(BARE_PYTHON + "{% if m.tool_calls %}</calls>{% endif %}"), ()),
        (template("", shown="{# [f(a=b)] #}{{ tools | tojson if tools else '' }}"), ()),
    ],
)
def test_others_are_not_taken_for_such(source: str, tokens: tuple[str, ...]) -> None:
    found = learned(source, *tokens)
    assert found is None or found.calls is None or found.calls.style == "json"


def test_a_template_that_writes_no_calls_gets_them_as_text() -> None:
    arguments = {"city": 'a "b"', "ok": True, "none": None, "more": {"x": [1, False]}}
    calls = [ToolCall(id="1", name="f", arguments=json.dumps(arguments)), ToolCall(id="2", name="g", arguments="odd")]
    message = ChatMessage(role="assistant", content="Well.", tool_calls=calls)
    turn = template_message(message, "Well.", learned(*KNOWN["tokens"][:1], *PAIR))
    text = '[f(city="a \\"b\\"", ok=True, none=None, more={"x": [1, false]}), g()]'
    text = f"Well.{PAIR[0]}{text}{PAIR[1]}"
    assert turn == {"role": "assistant", "content": text}
    parts = template_message(message, [{"type": "text", "text": "Well."}], learned(KNOWN["told"][0]))["content"]
    assert parts[-1]["text"].startswith("[f(city=")
    assert template_message(message, "Well.", learned(KNOWN["written"][0]))["tool_calls"]
