"""Conversations as the server keeps them: branches, answers still being written, and what is forgotten first."""

from collections.abc import Iterator
from typing import Any

import pytest

from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, GenerateRequest, ToolCall
from nbgen.protocols.chat_messages import Call, CalledFunction, Part
from nbgen.protocols.native import Message
from nbgen.server import chats as chats_module
from nbgen.server.chats import Chat, Chats, Turn
from nbgen.server.runs import Run

HI = Message(role="user", content="hi")
DONE = FinishReason(type="stop")


def writing(rid: str, text: str = "") -> Run:
    run = Run(GenerateRequest(rid=rid, messages=[HI]))
    if text:
        run.add(GenerateOutput(rid=rid, text=text, token_ids=[1], completion_tokens=1))
    return run


def test_an_answer_grows_until_its_run_is_over() -> None:
    chat, run = Chat(), writing("r", "a")
    chat.add([HI], run)
    assert chat.messages() == [HI, Message(role="assistant", content="a")]
    run.add(GenerateOutput(rid="r", text="b", token_ids=[2], completion_tokens=2, finish_reason=DONE))
    chat.settle(run)
    answer = chat.turns()[1]
    assert (answer.content, answer.finish_reason, answer.usage) == ("ab", DONE, run.usage)


def test_an_answer_without_text_is_no_message() -> None:
    chat = Chat()
    chat.add([HI], writing("r"))
    assert chat.messages() == [HI]


def test_the_same_messages_are_the_same_turns() -> None:
    chat = Chat()
    for rid in ("one", "two"):
        chat.add([HI], writing(rid, rid))
    assert [(turn.parent, turn.run) for turn in chat.turns()] == [(None, None), (0, "one"), (0, "two")]
    assert chat.messages()[-1].content == "two"


def calling(rid: str, call: ToolCall) -> Run:
    run = writing(rid)
    run.add(GenerateOutput(rid=rid, token_ids=[1], parts=[AnswerPart(tool_call=call)], finish_reason=DONE))
    return run


def test_calls_and_their_results_are_turns_that_are_found_again() -> None:
    chat = Chat()
    run = calling("one", ToolCall(id="a", name="f", arguments='{"x": 1}'))
    chat.add([HI], run)
    chat.settle(run)
    said = chat.messages()[1]
    assert (said.content, said.tool_calls) == ("", [Call(CalledFunction("f", '{"x": 1}'), "a")])
    assert chat.size == sum(turn.size for turn in chat.turns()) > 2
    told = Message(role="tool", content="2", tool_call_id="a")
    chat.add([HI, said, told], writing("two", "three"))
    other = Message(role="assistant", content="", tool_calls=[Call(CalledFunction("f", "{}"), "b")])
    chat.add([HI, other, told], writing("three", "four"))
    assert [turn.parent for turn in chat.turns()] == [None, 0, 1, 2, 0, 4, 5]
    assert chat.messages()[1:3] == [other, told]


def test_a_text_that_is_continued_has_an_answer_alone() -> None:
    chat = Chat()
    chat.add([], writing("r", "x"))
    assert [(turn.parent, turn.content) for turn in chat.turns()] == [(None, "x")]


def test_the_chat_used_least_recently_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats_module, "KEEP_CHATS", 2)
    chats = Chats()
    for name in ("a", "b", "a", "c"):
        chats.open(name).add([HI], writing(name))
    assert [name for name in "abc" if chats.find(name)] == ["a", "c"]
    monkeypatch.setattr(chats_module, "KEEP_CHARACTERS", 1)
    chats.open("c")
    assert [name for name in "abc" if chats.find(name)] == ["c"]


def with_image(text: str, data: str) -> Message:
    return Message(role="user", content=[Part(type="text", text=text), Part(type="image_url", image_url={"url": data})])


def test_a_turn_with_another_image_is_another_turn_and_keeps_it() -> None:
    chat = Chat()
    for name, data in (("one", "data:a"), ("two", "data:b"), ("three", "data:a")):
        chat.add([with_image("what?", data)], writing(name, name))
    assert [turn.content for turn in chat.turns() if turn.role == "user"] == [
        with_image("what?", "data:a").content,
        with_image("what?", "data:b").content,
    ]
    assert chat.messages()[0] == with_image("what?", "data:a")


def test_the_oldest_images_of_a_large_chat_are_forgotten_and_their_places_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats_module, "KEEP_FILE_CHARACTERS", 1000)
    chat = Chat()
    for name in ("a", "b"):
        chat.add([with_image(name, name * 700)], writing(name, name))
    first, second = (turn.content for turn in chat.turns() if turn.role == "user")
    assert first == [Part(type="text", text="a"), Part(type="image_url")]
    assert second == with_image("b", "b" * 700).content


def test_an_answer_in_parts_keeps_its_calls_when_its_files_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats_module, "KEEP_FILE_CHARACTERS", 1000)
    called = [Call(CalledFunction("f", "{}"), "a")]
    said = Message(role="assistant", content=[Part(type="text", text="x")], tool_calls=called)
    told = Message(role="tool", content="2", tool_call_id="a")
    chat = Chat()
    chat.add([HI, said, told, with_image("b", "b" * 2000)], writing("r", "y"))
    assert chat.messages()[1] == said
    assert sum(turn.size for turn in chat.turns()) == chat.size


def test_its_size_is_that_of_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats_module, "KEEP_FILE_CHARACTERS", 150)
    chat = Chat()
    runs = [writing(name, name * 10) for name in "abc"]
    for run in runs:
        chat.add([HI, with_image(f"after {run.id}", "data:" + "x" * 100)], run)
        assert sum(turn.size for turn in chat.turns()) == chat.size > 0
    before = chat.size
    chat.settle(runs[0])
    runs[1].add(GenerateOutput(rid="b", text="more", token_ids=[2], completion_tokens=2))
    assert sum(turn.size for turn in chat.turns()) == chat.size == before + 4


class Watched(list[Turn]):
    """Turns that count how many of them were looked at."""

    looked = 0

    def __iter__(self) -> Iterator[Turn]:
        for turn in super().__iter__():
            self.looked += 1
            yield turn

    def __getitem__(self, place: Any) -> Any:
        self.looked += 1
        return super().__getitem__(place)


def test_a_message_is_sought_only_among_those_that_follow_the_same_turn() -> None:
    chat = Chat()
    chat._turns = watched = Watched()
    messages = [Message(role="user", content=f"turn {number}") for number in range(200)]
    for name in ("one", "two"):
        chat.add(messages, writing(name, name))
    assert len(watched) == 202
    assert watched.looked <= 200
