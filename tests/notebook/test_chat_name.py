"""Chats of any name have ids that the server takes."""

import pytest

from nbgen.identifiers import IDENTIFIER
from nbgen.notebook.chat_name import chat_id

NAMES = ["my plans", "Pläne", "a/b", "../x", ".", "..", "a" * 129, "日本", "?", "a\nb", "plans\n", " plans", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_has_an_id(name: str) -> None:
    id = chat_id(name)
    assert IDENTIFIER.fullmatch(id)
    assert id not in (".", "..")
    assert id == chat_id(name)
    assert chat_id(id) == id


def test_an_id_says_what_the_name_was_and_no_two_are_alike() -> None:
    assert chat_id("my plans").startswith("my-plans-")
    assert chat_id("Pläne").startswith("Plane-")
    assert chat_id("Pla\u0308ne") == chat_id("Pläne"), "they look the same"
    assert len({chat_id(name) for name in NAMES}) == len(NAMES)
    assert len({chat_id("a" * n) for n in range(100, 200)}) == 100


@pytest.mark.parametrize("name", ["plans", "a.b:c-d_1", "...", "a" * 128])
def test_what_is_an_id_stays_as_it_is(name: str) -> None:
    assert chat_id(name) == name
