"""Which conversations are kept, how long, and who may change them, without a server."""

import json
import time
from typing import Any

import pytest

from nbgen.errors import InternalError, InvalidRequest, NotFound
from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols.openai import Call
from nbgen.protocols.responses import ResponseCall
from nbgen.protocols.responses_answer import item_page
from nbgen.protocols.responses_body import Body
from nbgen.protocols.responses_items import input_items
from nbgen.protocols.responses_query import Page
from nbgen.server import conversations
from nbgen.server.conversations import Conversations
from nbgen.server.responses import Response
from nbgen.server.runs import Run

ITEM: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "user", "content": "x" * 1000}


def begin(kept: Conversations, id: str) -> Run:
    """A response in this conversation."""
    said = input_items("hi")
    conversation = kept.claim(id, kept.get(id).items, said)
    run = Run(GenerateRequest(rid="r", text=""))
    asked = ResponseCall("resp_a", Body(input="hi", conversation=id), Call([run.request], chat=True), said, [])
    kept.follow(conversation, Response(asked, "m", run), run)
    return run


@pytest.mark.parametrize(("end", "said"), [("stop", 2), ("length", 2), ("abort", 0), ("error", 0)])
def test_a_response_is_added_once_if_it_was_answered(end: Any, said: int) -> None:
    kept = Conversations()
    conversation = kept.create({}, [])
    run = begin(kept, conversation.id)
    run.add(GenerateOutput(rid="r", text="y", token_ids=(1,)))
    for change in (lambda: kept.add(conversation.id, [ITEM]), lambda: kept.claim(conversation.id, (), [])):
        with pytest.raises(InvalidRequest, match="being made"):
            change()
    run.add(GenerateOutput(rid="r", finish_reason=FinishReason(end)))
    run.fail(InternalError("too late"))
    run.add(GenerateOutput(rid="r", text="too late", token_ids=(2,)))
    assert [item["role"] for item in conversation.items] == ["user", "assistant"][:said]
    kept.add(conversation.id, [ITEM])
    assert len(conversation.items) == said + 1


def test_what_was_changed_since_it_was_read_is_not_answered() -> None:
    kept = Conversations()
    conversation = kept.create({}, [ITEM])
    read = conversation.items
    kept.remove(conversation.id, "msg_1")
    with pytest.raises(InvalidRequest, match="being made"):
        kept.claim(conversation.id, read, [])


def test_items_are_found_in_all_of_them() -> None:
    kept = Conversations()
    for number in range(3):
        kept.create({}, [ITEM | {"id": f"msg_{number}"}])
    assert kept.find("msg_1") == ITEM
    assert kept.find("msg_3") is None


def test_an_item_is_found_among_many_at_once() -> None:
    kept = Conversations()
    for number in range(100):
        kept.create({}, [ITEM | {"id": f"msg_{number}_{place}"} for place in range(500)])
    began = time.process_time()
    assert all(kept.find("msg_0_499") and not kept.find("msg_x") for _ in range(1000))
    assert time.process_time() - began < 0.5


def test_of_several_items_with_one_id_there_is_always_one_that_is_there() -> None:
    kept = Conversations()
    first, second = kept.create({}, [ITEM]), kept.create({}, [ITEM | {"content": "other"}])
    found = []
    for change in (
        lambda: None,
        lambda: kept.remove(second.id, "msg_1"),
        lambda: kept.remove(first.id, "msg_1"),
        lambda: kept.delete(first.id),
    ):
        change()
        item = kept.find("msg_1")
        found.append(item and item["content"])
    assert found == ["other", ITEM["content"], None, None]


def test_every_item_of_one_has_an_id_of_its_own() -> None:
    kept = Conversations()
    conversation = kept.create({}, [ITEM, ITEM | {"content": "again"}])
    (added,) = kept.add(conversation.id, [ITEM | {"id": ""}])
    assert conversation.items[2] is added is kept.find(added["id"])
    (asked,) = said = [ITEM | {"content": "once more"}]
    run = Run(GenerateRequest(rid="r", text=""))
    body = Body(input="", conversation=conversation.id)
    response = Response(ResponseCall("resp_a", body, Call([run.request], chat=True), said, []), "m", run)
    kept.follow(conversation, response, run)
    run.add(GenerateOutput(rid="r", finish_reason=FinishReason("stop")))
    ids = [item["id"] for item in conversation.items]
    assert (len(set(ids)), ids[0], asked["id"]) == (5, "msg_1", "msg_1")
    read: list[str] = []
    for _ in range(3):
        page = json.loads(item_page(conversation.items, Page(limit=2, order="asc", after=read[-1] if read else "")))
        read += [item["id"] for item in page["data"]]
    assert (read, page["has_more"]) == (ids, False)


def test_a_word_costs_no_more_in_a_long_conversation() -> None:
    kept = Conversations()
    id = kept.create({}, [ITEM | {"content": "x" * 2**20} for _ in range(40)]).id
    began = time.process_time()
    for number in range(50):
        kept.add(id, [ITEM | {"id": f"msg_{number}"}])
    assert time.process_time() - began < 0.5
    size = kept.size
    kept.remove(id, "msg_7")
    assert 1000 < size - kept.size < 1100
    assert kept.find("msg_7") is None


def test_those_not_used_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEEP_CONVERSATIONS", 3)
    kept = Conversations()
    busy, used, idle = (kept.create({}, []) for _ in range(3))
    run = begin(kept, busy.id)
    kept.add(used.id, [ITEM])
    for _ in range(2):
        kept.create({}, [])
    with pytest.raises(NotFound):
        kept.get(idle.id)
    with pytest.raises(NotFound):
        kept.get(used.id)
    assert kept.get(busy.id) is busy
    run.add(GenerateOutput(rid="r", finish_reason=FinishReason("stop")))
    kept.create({}, [])
    assert len(kept.get(busy.id).items) == 2


def test_they_hold_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEEP_BYTES", 2500)
    kept = Conversations()
    first, second = kept.create({}, [ITEM]), kept.create({}, [ITEM])
    with pytest.raises(InvalidRequest, match="at most 2500"):
        kept.add(second.id, [ITEM, ITEM])
    with pytest.raises(InvalidRequest, match="delete items of it, or begin another"):
        kept.claim(second.id, second.items, [ITEM, ITEM])
    assert (len(second.items), second.busy) == (1, False)
    kept.add(second.id, [ITEM])
    with pytest.raises(NotFound):
        kept.get(first.id)
    assert len(kept.get(second.id).items) == 2
    assert len(kept.create({}, [ITEM] * 3).items) == 3
    with pytest.raises(NotFound):
        kept.get(second.id)
    third = kept.create({}, [ITEM] * 4)
    assert kept.get(third.id) is third
    kept.delete(third.id)
    with pytest.raises(NotFound):
        kept.add(third.id, [])


def test_a_full_one_takes_no_question_until_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEEP_BYTES", 1500)
    kept = Conversations()
    conversation = kept.create({}, [ITEM])
    run = begin(kept, conversation.id)
    run.add(GenerateOutput(rid="r", text="y" * 1000, token_ids=(1,)))
    run.add(GenerateOutput(rid="r", finish_reason=FinishReason("stop")))
    assert len(conversation.items) == 3, "an answer that was given is part of it"
    with pytest.raises(InvalidRequest, match="at most 1500") as refused:
        begin(kept, conversation.id)
    assert refused.value.field == "input"
    assert (len(kept.get(conversation.id).items), conversation.busy) == (3, False)
    kept.remove(conversation.id, "msg_1")
    begin(kept, conversation.id)
