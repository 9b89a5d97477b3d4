"""OpenAI's conversations with the real client: their items, and responses that continue them."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.server.conftest import Server
from tests.server.test_responses import CALL, LONG, TOOLS, ask, patient  # noqa: F401

HELLO = {"type": "message", "role": "user", "content": "hello"}
IMAGE = "data:image/png;base64,aGk="


@pytest.fixture(scope="module")
def client(calling_server: Server) -> Iterator[openai.OpenAI]:
    with calling_server.openai() as client:
        yield client


def texts(client: openai.OpenAI, id: str) -> list[str]:
    """What was said, in order."""
    return [item.content[0].text for item in client.conversations.items.list(id, order="asc")]


def test_a_conversation_is_made_labelled_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(metadata={"a": "b"}, items=[HELLO])
    assert (made.object, made.metadata, texts(client, made.id)) == ("conversation", {"a": "b"}, ["hello"])
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert changed == client.conversations.retrieve(made.id) == made.model_copy(update={"metadata": {"c": "d"}})
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError, match=made.id):
        client.conversations.retrieve(made.id)
    assert texts(client, client.conversations.create().id) == []


def test_labels_are_short(client: openai.OpenAI, calling_server: Server) -> None:
    made = client.conversations.create()
    body = {"metadata": {"a": "b"}, "x": "y" * 2**20}
    assert calling_server.http.post(f"v1/conversations/{made.id}", json=body).status_code == 413
    assert client.conversations.retrieve(made.id) == made


def test_items_are_added_listed_and_taken_away(client: openai.OpenAI) -> None:
    id = client.conversations.create().id
    said = [{"role": role, "content": f"{role}s"} for role in ("developer", "user", "assistant")]
    added = client.conversations.items.create(id, items=said)
    assert [(item.type, item.role, item.status) for item in added.data] == [
        ("message", role["role"], "completed") for role in said
    ]
    assert [part.type for item in added.data for part in item.content] == ["input_text", "input_text", "output_text"]
    assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[2].id, False)
    middle = added.data[1]
    assert client.conversations.items.retrieve(middle.id, conversation_id=id) == middle
    pages = client.conversations.items.list(id, limit=2, include=["message.output_text.logprobs"])
    assert (len(pages.data), [item.id for item in pages]) == (2, [item.id for item in added.data[::-1]])
    assert client.conversations.items.delete(middle.id, conversation_id=id).id == id
    assert texts(client, id) == ["developers", "assistants"]
    with pytest.raises(openai.NotFoundError, match=middle.id):
        client.conversations.items.retrieve(middle.id, conversation_id=id)
    (again,) = client.conversations.items.create(id, items=[{"type": "item_reference", "id": added.data[0].id}]).data
    assert again.content == added.data[0].content
    assert [item.id for item in client.conversations.items.list(id, limit=1)] == [
        again.id,
        added.data[2].id,
        added.data[0].id,
    ]
    with pytest.raises(openai.BadRequestError, match=f"no item '{middle.id}' to begin after") as refusal:
        client.conversations.items.list(id, after=middle.id)
    assert refusal.value.param == "after"


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"store": False}])
def test_responses_begin_with_a_conversation_and_are_added_to_it(
    client: openai.OpenAI, options: dict[str, Any]
) -> None:
    id = client.conversations.create(items=[HELLO]).id
    answers = []
    for question in ("one", "two"):
        answer = ask(client, input=question, conversation=id, **options)
        answers.append(list(answer)[-1].response if options.get("stream") else answer)
    first, second = answers
    assert first.conversation.id == id
    said = ["hello", "one", first.output_text, "two", second.output_text]
    assert texts(client, id) == said
    roles = ("user", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    counted = client.responses.input_tokens.count(model="any", input=turns)
    assert client.responses.input_tokens.count(model="any", conversation={"id": id}) == counted
    assert ask(client, input=turns[:4]).output_text == second.output_text


def test_a_call_and_its_result_are_items(client: openai.OpenAI) -> None:
    id = client.conversations.create().id
    (call,) = ask(client, input="What is the weather?", conversation=id, **CALL).output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    ask(client, input=[result], tools=TOOLS, conversation=id)
    items = list(client.conversations.items.list(id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert client.conversations.items.retrieve(call.id, conversation_id=id).arguments == call.arguments


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
        ([{**HELLO, "id": ["msg_0"]}], r"items\[0\].*`str`.*id"),
        ([{"role": "assistant", "content": [{"type": "input_image", "image_url": IMAGE}]}], "text only"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "uploaded"),
        ([{"type": "item_reference", "id": "msg_0"}], "no item 'msg_0'"),
    ],
)
def test_items_that_no_response_could_begin_with_are_refused(
    client: openai.OpenAI, items: list[Any], words: str
) -> None:
    id = client.conversations.create().id
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        client.conversations.items.create(id, items=items)
    assert refusal.value.param == "items"
    assert texts(client, id) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.conversations.retrieve("conv_0"),
        lambda client: client.conversations.update("conv_0", metadata={}),
        lambda client: client.conversations.delete("conv_0"),
        lambda client: client.conversations.items.list("conv_0"),
        lambda client: client.conversations.items.create("conv_0", items=[HELLO]),
        lambda client: client.conversations.items.retrieve("msg_0", conversation_id="conv_0"),
        lambda client: client.conversations.items.delete("msg_0", conversation_id="conv_0"),
        lambda client: ask(client, conversation="conv_0"),
    ],
)
def test_an_unknown_conversation_is_not_found(client: openai.OpenAI, call: Callable[[Any], object]) -> None:
    with pytest.raises(openai.NotFoundError, match="conv_0") as refusal:
        call(client)
    assert refusal.value.param == "conversation"
