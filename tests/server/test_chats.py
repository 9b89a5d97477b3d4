"""Conversations as the server keeps them: branches, answers still being written, and what is forgotten first."""

import pytest

from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols.chat_messages import Part
from nbgen.protocols.native import Message
from nbgen.server import chats as chats_module
from nbgen.server.chats import Chat, Chats
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
