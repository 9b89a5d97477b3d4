"""Conversations as the server keeps them: branches, answers still being written, and what is forgotten first."""

import pytest

from nbgen.messages import ChatMessage, FinishReason, GenerateOutput, GenerateRequest
from nbgen.server import chats as chats_module
from nbgen.server.chats import Chat, Chats
from nbgen.server.runs import Run

HI = ChatMessage(role="user", content="hi")
DONE = FinishReason(type="stop")


def writing(rid: str, text: str = "") -> Run:
    run = Run(GenerateRequest(rid=rid, messages=[HI]))
    if text:
        run.add(GenerateOutput(rid=rid, text=text, token_ids=[1], completion_tokens=1))
    return run


def test_an_answer_grows_until_its_run_is_over() -> None:
    chat, run = Chat(), writing("r", "a")
    chat.add([HI], run)
    assert chat.messages() == [HI, ChatMessage(role="assistant", content="a")]
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
