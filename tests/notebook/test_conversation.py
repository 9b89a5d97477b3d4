"""What a conversation sends with each turn."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.conversation import Conversation
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import TextStream
from nbgen.notebook.turns import NO_RESULT

CALL = {"id": "c1", "name": "forecast", "arguments": "{}"}


def sky() -> str:
    """The weather."""
    return "clear"


def forecast() -> None:
    """The weather, which somebody interrupts."""
    raise KeyboardInterrupt


def test_a_conversation_is_brought_back(connected: PrivateServer) -> None:
    talk = nbgen.chat("be short", max_new_tokens=4)
    result = talk("one")
    for kept in (talk.messages, talk, json.loads(talk.to_jsonl())["messages"]):
        again = nbgen.chat(messages=kept, max_new_tokens=4)
        assert again.messages == talk.messages
        assert again.messages is not talk.messages
        again("two")
        assert [turn["role"] for turn in again.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert len(nbgen.chat(messages=result)) == 3
    assert len(nbgen.chat("be long", messages=[{"role": "user", "content": "one"}])) == 2
    for wrong, words in (
        (talk.messages, "leave system= out"),
        ("one", "messages are a list"),
        ([1], "a list with int"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            nbgen.chat("be short", messages=wrong)


def test_wrong_options_are_refused_when_a_conversation_is_made() -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        nbgen.chat(temprature=1)
    with pytest.raises(InvalidRequest, match="temperature must be at least 0"):
        nbgen.chat(temperature=-1)
    with pytest.raises(InvalidRequest, match="template_options are a dict"):
        nbgen.chat(template_options=["thinks"])


def test_a_conversation_may_have_a_schema(connected: PrivateServer) -> None:
    assert nbgen.chat(schema=bool, max_new_tokens=9)("Is it?").value in (True, False)


def test_a_turn_may_have_a_schema_of_its_own(connected: PrivateServer) -> None:
    talk = nbgen.chat(max_new_tokens=9)
    assert talk("Is it?", schema=bool).value in (True, False)
    with talk.stream("Or not?", schema=bool) as answer:
        assert "".join(answer) in ("true", "false")
    assert talk("Why?").schema is None


@pytest.mark.parametrize("branched", [copy.copy, copy.deepcopy, lambda talk: pickle.loads(pickle.dumps(talk))])
def test_a_copy_goes_on_by_itself(connected: PrivateServer, branched: Callable[[Any], Any]) -> None:
    talk = nbgen.chat("be short", max_new_tokens=4, tools=[sky], tool_choice="none")
    talk("one")
    other = branched(talk)
    assert other.messages == talk.messages
    other("two")
    assert [len(other), len(talk)] == [5, 3]
    assert other.undo() is None
    assert talk("three").messages == [*other.messages, {"role": "user", "content": "three"}]


def test_calls_that_others_have_written_are_shown() -> None:
    functions = [{"name": "forecast", "arguments": {"city": "Oslo"}}, {"name": "sky"}]
    calls = [{"id": str(place), "type": "function", "function": each} for place, each in enumerate(functions)]
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}], "tool_calls": calls}
    shown = 'Let me see.\n\n`forecast({"city": "Oslo"})`\n\n`sky()`'
    talk = nbgen.chat(messages=[turn])
    assert talk.to_markdown() == f"**Model**\n\n{shown}"
    assert talk._repr_mimebundle_()["text/plain"].endswith(shown)


def test_what_goes_with_every_question_does_not_go_with_what_tools_return() -> None:
    sent: list[Any] = []

    def ask(messages: list[dict[str, Any]], **options: Any) -> TextStream:
        sent.append([options[name] for name in ("images", "tool_choice", "temperature")])
        delta = {"text": "", "tool_calls": [CALL | {"name": "sky"}]} if len(sent) == 1 else {"text": "hello"}
        done = {"finish_reason": {"type": "stop"}, "usage": {}}
        return TextStream(iter([("delta", delta), ("done", done)]), Result())

    talk = Conversation(ask, options={"images": "a.png", "tool_choice": "required", "temperature": 0, "tools": sky})
    assert talk("Rain?") == "hello"
    assert sent == [["a.png", "required", 0], [None, None, 0]]


def test_calls_that_were_interrupted_have_results_in_the_next_turn() -> None:
    sent: list[list[dict[str, Any]]] = []

    def ask(messages: list[dict[str, Any]], **_: Any) -> TextStream:
        sent.append(messages)
        delta = {"text": "", "tool_calls": [CALL]} if len(sent) == 1 else {"text": "hello"}
        done = {"finish_reason": {"type": "stop"}, "usage": {}}
        return TextStream(iter([("delta", delta), ("done", done)]), Result())

    talk = Conversation(ask, options={"tools": forecast})
    with pytest.raises(KeyboardInterrupt):
        talk("Rain?")
    talk("Never mind")
    assert [message["role"] for message in sent[-1]] == ["user", "assistant", "tool", "user"]
    assert sent[-1][2] == {"role": "tool", "tool_call_id": "c1", "content": NO_RESULT}
