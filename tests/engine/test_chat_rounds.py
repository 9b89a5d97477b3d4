"""Which turns a chat that is too long does without."""

import pytest

from nbgen.engine.chat_rounds import shortened
from nbgen.messages import ChatMessage, ContentPart, GenerateRequest, Media

ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def chat(turns: str) -> GenerateRequest:
    """One turn a letter, each with its place as its text."""
    messages = [ChatMessage(role=ROLES[each], content=str(place)) for place, each in enumerate(turns)]  # type: ignore[arg-type]
    return GenerateRequest(rid="r", messages=messages)


@pytest.mark.parametrize(
    ("turns", "room", "kept"),
    [
        ("suauau", 6, "012345"),
        ("suauau", 5, "0345"),
        ("suauau", 4, "0345"),
        ("suauau", 3, "05"),
        ("suauau", 1, "05"),
        ("ssu", 1, "012"),
        ("uatau", 3, "4"),
        ("uatatat", 5, "03456"),
        ("uatatat", 4, "056"),
        ("uatatat", 2, "056"),
        ("uauatatat", 7, "2345678"),
        ("uauatatat", 5, "25678"),
        ("ausu", 3, "123"),
        ("suusu", 4, "0234"),
        ("saa", 2, "02"),
    ],
)
def test_the_oldest_rounds_go_until_the_rest_fits(turns: str, room: int, kept: str) -> None:
    found = shortened(chat(turns), lambda request: len(request.messages or ()) <= room)
    assert "".join(message.text for message in found.messages or ()) == kept


def test_few_lengths_are_tried() -> None:
    tried = []

    def holds(request: GenerateRequest) -> bool:
        tried.append(len(request.messages or ()))
        return tried[-1] < 7

    found = shortened(chat("ua" * 500 + "u"), holds)
    assert len(found.messages or ()) == 5
    assert len(tried) < 12


def test_media_go_with_their_turns() -> None:
    image, text = ContentPart(type="image"), ContentPart(type="text", text="x")
    turns = [[image, text, image], [text], [image]]
    media = [Media(type="image", options={"n": number}) for number in range(3)]
    request = GenerateRequest(
        rid="r", messages=[ChatMessage(role="user", content=parts) for parts in turns], media=media
    )
    found = shortened(request, lambda request: len(request.media) < 3)
    assert (len(found.messages or ()), found.media) == (2, media[2:])
