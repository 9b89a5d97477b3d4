"""Templates that show tools and leave calls out of turns: calls are read and written again as their words say."""

import json

import pytest

from nbgen.engine.template_messages import template_message
from nbgen.engine.told_calls import MARKS
from nbgen.messages import ChatMessage, ToolCall
from tests.chat_templates import CALLS, SHOWN, TOLD_LIST, TOLD_OBJECTS, template
from tests.engine.test_answer_format import WANTED, joined, learned, read

OBJECTS = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in WANTED]
LIST = f"{MARKS[0]}[{', '.join(OBJECTS)}]"
#: What shows the tools, the model's tokens for calls, and how two calls are written then.
KNOWN = {
    "objects": (TOLD_OBJECTS, (), "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in OBJECTS)),
    "list": (TOLD_LIST, MARKS[:1], LIST),
    "tokens": (SHOWN, MARKS, LIST + MARKS[1]),
}


@pytest.mark.parametrize("way", KNOWN)
def test_calls_are_read_and_written_again(way: str) -> None:
    shown, tokens, text = KNOWN[way]
    found = learned(template("", shown=shown), *tokens)
    for size in (1, 7, 1000):
        assert joined(read(found, f"Well.\n{text}\n", size=size)) == ("Well.", "", WANTED)
    assert joined(read(found, text.replace(MARKS[0], "<tool_call>")))[2] == WANTED
    assert found.mentions(MARKS[0]) == (MARKS[0] in text), "the text without special tokens would not have it"
    calls = [ToolCall(id=name, name=name, arguments=json.dumps(each)) for name, each in WANTED]
    turn = template_message(ChatMessage(role="assistant", content="Well.", tool_calls=calls), "Well.", found)
    assert turn["content"].replace("\\u00e3", "ã") == "Well." + text.replace("\\u00e3", "ã")
    assert "tool_calls" not in turn


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        (template(""), MARKS[:1]),
        (template("", shown=""), MARKS),
        (template("{% if m.tool_calls %}<calls>{{ m.tool_calls[0].function.name }}</calls>{% endif %}"), MARKS),
        (template("", shown=TOLD_OBJECTS.replace("{{ tools | tojson }}", "")), ()),
    ],
)
def test_others_are_not_taken_for_such(source: str, tokens: tuple[str, ...]) -> None:
    assert learned(source, *tokens) is None


def test_calls_that_a_template_writes_are_read_as_it_does() -> None:
    assert not learned(template(CALLS["list"], shown=TOLD_OBJECTS), *MARKS).calls.in_content
