"""OpenAI's conversations with the real client: their items, and responses that continue them."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.server.conftest import Server
from tests.server.test_responses import CALL, LONG, TOOLS, ask, patient  # noqa: F401

HELLO = {"type": "message", "role": "user", "content": "hello"}
IMAGE = "data:image/png;base64,aGk="


def texts(caller: openai.OpenAI, id: str) -> list[str]:
    """What was said, in order."""
    return [item.content[0].text for item in caller.conversations.items.list(id, order="asc")]


def test_a_conversation_is_made_labelled_and_deleted(caller: openai.OpenAI) -> None:
    made = caller.conversations.create(metadata={"a": "b"}, items=[HELLO])
    assert (made.object, made.metadata, texts(caller, made.id)) == ("conversation", {"a": "b"}, ["hello"])
    changed = caller.conversations.update(made.id, metadata={"c": "d"})
    assert changed == caller.conversations.retrieve(made.id) == made.model_copy(update={"metadata": {"c": "d"}})
    gone = caller.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError, match=made.id):
        caller.conversations.retrieve(made.id)
    assert texts(caller, caller.conversations.create().id) == []


def test_labels_are_short(caller: openai.OpenAI, calling_server: Server) -> None:
    made = caller.conversations.create()
    body = {"metadata": {"a": "b"}, "x": "y" * 2**20}
    assert calling_server.http.post(f"v1/conversations/{made.id}", json=body).status_code == 413
    assert caller.conversations.retrieve(made.id) == made


def test_items_are_added_listed_and_taken_away(caller: openai.OpenAI) -> None:
    id = caller.conversations.create().id
    said = [{"role": role, "content": f"{role}s"} for role in ("developer", "user", "assistant")]
    added = caller.conversations.items.create(id, items=said)
    assert [(item.type, item.role, item.status) for item in added.data] == [
        ("message", role["role"], "completed") for role in said
    ]
    assert [part.type for item in added.data for part in item.content] == ["input_text", "input_text", "output_text"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[2].id, False)
    middle = added.data[1]
    assert caller.conversations.items.retrieve(middle.id, conversation_id=id) == middle
    pages = caller.conversations.items.list(id, limit=2, include=["message.output_text.logprobs"])
    assert (len(pages.data), [item.id for item in pages]) == (2, [item.id for item in added.data[::-1]])
    assert caller.conversations.items.delete(middle.id, conversation_id=id).id == id
    assert texts(caller, id) == ["developers", "assistants"]
    with pytest.raises(openai.NotFoundError, match=middle.id):
        caller.conversations.items.retrieve(middle.id, conversation_id=id)
    (again,) = caller.conversations.items.create(id, items=[{"type": "item_reference", "id": added.data[0].id}]).data
    assert again.content == added.data[0].content
    assert [item.id for item in caller.conversations.items.list(id, limit=1)] == [
        again.id,
        added.data[2].id,
        added.data[0].id,
    ]
    with pytest.raises(openai.BadRequestError, match=f"no item '{middle.id}' to begin after") as refusal:
        caller.conversations.items.list(id, after=middle.id)
    assert refusal.value.param == "after"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"store": False}])
def test_responses_begin_with_a_conversation_and_are_added_to_it(
    caller: openai.OpenAI, options: dict[str, Any]
) -> None:
    id = caller.conversations.create(items=[HELLO]).id
    answers = []
    for question in ("one", "two"):
        answer = ask(caller, input=question, conversation=id, **options)
        answers.append(list(answer)[-1].response if options.get("stream") else answer)
    first, second = answers
    assert first.conversation.id == id
    said = ["hello", "one", first.output_text, "two", second.output_text]
    assert texts(caller, id) == said
    roles = ("user", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    counted = caller.responses.input_tokens.count(model="any", input=turns)
    assert caller.responses.input_tokens.count(model="any", conversation={"id": id}) == counted
    assert ask(caller, input=turns[:4]).output_text == second.output_text


def test_a_call_and_its_result_are_items(caller: openai.OpenAI) -> None:
    id = caller.conversations.create().id
    (call,) = ask(caller, input="What is the weather?", conversation=id, **CALL).output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ask(caller, input=[result], tools=TOOLS, conversation=id)
    items = list(caller.conversations.items.list(id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert caller.conversations.items.retrieve(call.id, conversation_id=id).arguments == call.arguments


def test_one_response_at_a_time_and_what_is_cancelled_was_not_said(patient: openai.OpenAI) -> None:  # noqa: F811
    id = patient.conversations.create(items=[HELLO]).id
    begun = patient.responses.create(background=True, conversation=id, **LONG)
    for change in (
        lambda: ask(patient, conversation=id),
        lambda: patient.conversations.items.create(id, items=[HELLO]),
    ):
        with pytest.raises(openai.BadRequestError, match="being made") as refusal:
            change()
        assert refusal.value.param == "conversation"
    assert patient.responses.cancel(begun.id).status == "cancelled"
    assert texts(patient, id) == ["hello"]
    assert ask(patient, conversation=id).status == "incomplete"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "1 to 20"),
        ([HELLO] * 21, "at most 20"),
        ([{"type": "computer_call"}], r"items\[0\].*'computer_call'"),
        ([{"role": "user"}], r"items\[0\].*content"),
        ([{**HELLO, "id": ["msg_0"]}], r"items\[0\]\.id: .*`str`"),
        ([{"role": "assistant", "content": [{"type": "input_image", "image_url": IMAGE}]}], "text only"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "uploaded"),
        ([{"type": "item_reference", "id": "msg_0"}], "no item 'msg_0'"),
    ],
)
def test_items_that_no_response_could_begin_with_are_refused(
    caller: openai.OpenAI, items: list[Any], words: str
) -> None:
    id = caller.conversations.create().id
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        caller.conversations.items.create(id, items=items)
    assert refusal.value.param == "items"
    assert texts(caller, id) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda caller: caller.conversations.retrieve("conv_0"),
        lambda caller: caller.conversations.update("conv_0", metadata={}),
        lambda caller: caller.conversations.delete("conv_0"),
        lambda caller: caller.conversations.items.list("conv_0"),
        lambda caller: caller.conversations.items.create("conv_0", items=[HELLO]),
        lambda caller: caller.conversations.items.retrieve("msg_0", conversation_id="conv_0"),
        lambda caller: caller.conversations.items.delete("msg_0", conversation_id="conv_0"),
        lambda caller: ask(caller, conversation="conv_0"),
    ],
)
def test_an_unknown_conversation_is_not_found(caller: openai.OpenAI, call: Callable[[Any], object]) -> None:
    with pytest.raises(openai.NotFoundError, match="conv_0") as refusal:
        call(caller)
    assert refusal.value.param == "conversation"
