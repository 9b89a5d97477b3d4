"""Answers in channels, as gpt-oss writes them: thoughts, texts and calls, read in their parts."""

import json

import pytest

from nbgen.engine.template_messages import template_message
from nbgen.messages import ChatMessage, ToolCall
from tests.chat_templates import CHANNELS
from tests.engine.test_answer_format import TOOLS, WANTED, calls_of, joined, learned, read, render

FOUND = learned(CHANNELS, ends=["<|return|>", "<|call|>"])
NEXT = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>I need\nit.<|end|>" + NEXT
BODY = json.dumps(WANTED[0][1], ensure_ascii=False)
#: How calls begin.
HEADERS = [
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.get_weather json<|message|>",
    "<|channel|>analysis to=functions.get_weather code<|message|>",
    "<|channel|>commentary to=get_weather <|constrain|>json<|message|>",
    " to=functions.get_weather<|channel|>commentary json<|message|>",
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", ["", "<|call|>"])
@pytest.mark.parametrize("thought", ["", THOUGHT])
@pytest.mark.parametrize("header", HEADERS)
def test_calls_are_read(header: str, thought: str, end: str, size: int) -> None:
    text = thought + header + BODY + end
    assert joined(read(FOUND, text, size=size)) == ("", "I need\nit." if thought else "", WANTED[:1])


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", ["", "<|return|>", "<|end|>"])
@pytest.mark.parametrize("header", ["<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>", ""])
def test_thoughts_and_texts_are_read(header: str, end: str, size: int) -> None:
    wanted = "Four." if end else "Four.\n"  # white space before a marker belongs to it
    assert joined(read(FOUND, header + "Four.\n" + end, size=size)) == (wanted, "", [])
    assert joined(read(FOUND, THOUGHT + header + "Four." + end, size=size))[1] == "I need\nit."


def test_the_template_s_own_turns_are_read() -> None:
    ask = [{"role": "user", "content": "?"}]
    for turn, wanted in (
        ({"content": "Four.", "thinking": "four?"}, ("Four.", "four?", [])),
        ({"content": "", "thinking": "hm", "tool_calls": calls_of(1)}, ("", "hm", WANTED[:1])),
    ):
        text = render(CHANNELS, [*ask, {"role": "assistant", **turn}], TOOLS)
        begun = render(CHANNELS, ask, TOOLS, opens=True)
        assert joined(read(FOUND, text.removeprefix(begun), begun)) == wanted


def test_several_messages_are_kept_apart() -> None:
    said = "<|channel|>commentary<|message|>I look.<|end|>" + NEXT
    text = THOUGHT + said + THOUGHT + HEADERS[0] + BODY + "<|call|>" + NEXT + "<|channel|>final<|message|>Done."
    assert joined(read(FOUND, text)) == ("I look.\n\nDone.", "I need\nit.\n\nI need\nit.", WANTED[:1])


def test_a_prompt_may_have_begun_the_answer() -> None:
    assert joined(read(FOUND, "hm<|end|>", f"{NEXT}<|channel|>analysis<|message|>"))[1] == "hm"
    assert joined(read(FOUND, "Four.", f"{THOUGHT}<|channel|>final<|message|>")) == ("Four.", "", [])


@pytest.mark.parametrize(
    "text",
    [
        HEADERS[0] + '{"city": "Os',
        HEADERS[0] + "[" * 3000 + "<|call|>",
        HEADERS[0].replace("functions.get_weather", "python") + "print(1)<|call|>",
        "<|channel|>analysis" + " to=functions.a" * 3000,
        "<|start|>assistant" * 3000,
        "<|channel|>anal",
        "to=functions.get_weather {}",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    for size in (7, len(text)):
        said, thought, calls = joined(read(FOUND, text, size=size))
        assert (thought, calls) == ("", [])
        assert text.partition("<|message|>")[2].removesuffix("<|call|>") in said


def test_without_tools_and_without_thoughts_all_is_text() -> None:
    text = THOUGHT + "<|channel|>final<|message|>Four."
    assert joined(read(FOUND, text, thoughts=False)) == (text, "", [])
    parts = FOUND.parser("", [], thoughts=True).feed(THOUGHT + HEADERS[0] + BODY, last=True)
    assert joined(parts) == (NEXT + HEADERS[0] + BODY, "I need\nit.", [])


def test_turns_that_were_read_can_be_rendered_again() -> None:
    call = ToolCall(id="1", name="get_weather", arguments=BODY)
    for content, thought in (("", "hm"), ("I look.", "hm"), ("I look.", ""), ("", "")):
        message = ChatMessage(role="assistant", content=content, reasoning=thought, tool_calls=[call])
        turns = [{"role": "user", "content": "?"}, template_message(message, content, FOUND)]
        text = render(CHANNELS, [*turns, {"role": "tool", "content": "sun"}], TOOLS, opens=True)
        assert all(
            each in text
            for each in (content, thought, f"to=functions.get_weather<|channel|>commentary json<|message|>{BODY}")
        )
    last = template_message(ChatMessage(role="assistant", content="Four.", reasoning="hm"), "Four.", FOUND)
    assert "analysis<|message|>hm<|end|>" in render(CHANNELS, [{"role": "user", "content": "?"}, last])
