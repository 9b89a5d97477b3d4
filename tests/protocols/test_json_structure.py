"""What is counted in a large body before it is parsed."""

import json

import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols import json_structure
from nbgen.protocols.json_structure import (
    MAX_LISTS,
    MAX_OBJECTS,
    MAX_QUOTES,
    SLICE,
    SMALL,
    check_structure,
    count,
    depth,
)


@pytest.mark.parametrize(("character", "limit"), [("{", MAX_OBJECTS), ("[", MAX_LISTS), ('"', MAX_QUOTES), (",", 1000)])
def test_no_more_than_a_limit_of_each(character: str, limit: int) -> None:
    padding = b" " * SMALL
    check_structure(memoryview(padding + character.encode() * limit), values=1000)
    with pytest.raises(InvalidRequest, match=f"more than {limit} times"):
        check_structure(memoryview(padding + character.encode() * (limit + 1)), values=1000)


def test_values_are_counted_only_where_there_is_a_limit_and_nothing_in_a_small_body() -> None:
    check_structure(memoryview(b"," * (SMALL + 1)))
    check_structure(memoryview(b"{" * SMALL), values=1)


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, SLICE])
def test_what_is_in_strings_is_not_counted(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(json_structure, "SLICE", slice_bytes)
    for name, limit in (("SMALL", 0), ("MAX_OBJECTS", 1), ("MAX_LISTS", 2), ("MAX_QUOTES", 6)):
        monkeypatch.setattr(json_structure, name, limit)
    body = json.dumps(['\\\\"[{,', {"\\": ['"{["\\']}]).encode()
    check_structure(memoryview(body), values=1)
    for more in (b"{", b"[", b'"', b","):
        with pytest.raises(InvalidRequest, match=r"more than [1-6] times"):
            check_structure(memoryview(body + more), values=1)


def test_a_body_is_counted_across_slices() -> None:
    body = b"[" * (SLICE - 1) + b"]" * (SLICE - 1) + b"[[]]"
    assert count(memoryview(body), ord("[")) == SLICE + 1
    assert depth(memoryview(body)) == SLICE - 1
    assert depth(memoryview(b"[" * SLICE + b"[[" + b"]" * 5)) == SLICE + 2


def test_how_deep_lists_are_nested() -> None:
    assert [depth(memoryview(body)) for body in (b"", b"1", b"[]", b"[[],[[]]]", b"[],[]")] == [0, 0, 1, 3, 1]
