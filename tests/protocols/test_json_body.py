"""What the strict parser takes and refuses."""

import base64
import json
import os
import threading
import time
from typing import Any

import msgspec
import pytest

from nbgen.errors import InvalidRequest
from nbgen.protocols import json_body
from nbgen.protocols.json_body import (
    MAX_BODY_VALUES,
    MAX_DEPTH,
    MAX_KEYS,
    MalformedBody,
    are_ids,
    are_integers,
    convert,
    parse_json,
    parse_object,
    refuse_unsupported,
)
from nbgen.protocols.json_structure import MAX_LISTS, MAX_OBJECTS, MAX_QUOTES, SLICE


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [1, -2.5, 1e3, true, null, "\xc3\xa9\\ud83d\\ude00\\u0000"]}',
        nested(MAX_DEPTH),
        b'\xef\xbb\xbf{"a": 1}',
    ],
)
def test_ordinary_json_is_read(body: bytes) -> None:
    assert parse_json(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a":1} x', "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": NaN}', "finite"),
        (b'{"a": -Infinity}', "finite"),
        (b'{"a": 1e999}', "finite"),
        (b'{"a": ' + b"9" * 401 + b"}", "64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"a": 18446744073709551616}', "64 bits"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ["\\udc00x"]}', "surrogate"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (nested(250_000), "nested deeper"),
    ],
)
def test_everything_else_is_refused_in_words(body: bytes, words: str) -> None:
    with pytest.raises(MalformedBody, match=words):
        parse_json(body)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 10**19])
def test_numbers_of_64_bits_are_exact(number: int) -> None:
    assert parse_json(f"[{number}]".encode()) == [number]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_larger_ones_are_refused(number: int) -> None:
    with pytest.raises(MalformedBody, match="64 bits"):
        parse_json(f"[{number}]".encode())


def test_an_object_has_no_more_keys_than_it_may() -> None:
    assert len(parse_object(json.dumps(dict.fromkeys(range(MAX_KEYS), 0)).encode())) == MAX_KEYS
    with pytest.raises(MalformedBody, match="20001 keys; at most 20000"):
        parse_object(json.dumps(dict.fromkeys(range(MAX_KEYS + 1), 0)).encode())


def test_a_key_that_is_given_twice_is_found_at_once_among_many() -> None:
    """Comparing each with all others took the event loop seconds."""
    keys = [f"key {number}" for number in range(19_990)]
    body = "{" + ", ".join(f'"{key}": 0' for key in [*keys, keys[-1]]) + "}"
    with pytest.raises(InvalidRequest, match="'key 19989' is given twice"):
        parse_json(body.encode())


def test_objects_are_nested_no_deeper_than_lists() -> None:
    parse_json(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)
    with pytest.raises(MalformedBody, match="nested deeper"):
        parse_json(b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("item", "limit"), [(b"[]", MAX_LISTS), (b"{}", MAX_OBJECTS), (b'""', MAX_QUOTES // 2), (b"1", MAX_BODY_VALUES)]
)
def test_a_large_body_is_counted_before_it_is_parsed(item: bytes, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="the request JSON has more than"):
        parse_json(b"[" + (item + b",") * (limit + 1) + b"0]")


def test_a_text_may_be_full_of_braces_and_quotes() -> None:
    text = '{"[,' * (MAX_QUOTES + 1)
    assert parse_json(json.dumps([text]).encode()) == [text]


def test_an_empty_body_is_an_empty_object() -> None:
    assert parse_object(b" \n") == {}


def test_a_list_is_no_object() -> None:
    with pytest.raises(MalformedBody, match="object"):
        parse_object(b"[]")


class Inner(msgspec.Struct):
    number: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    rows: list[Inner] = []


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"rows": 1}, "rows", "rows: Expected `array`, got `int`"),
        ({"rows": [{"number": "x"}]}, "rows[0].number", "rows[0].number: Expected `int`, got `str`"),
        ({"other": 1}, None, "Object contains unknown field `other`"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(fields: dict[str, Any], place: str | None, words: str) -> None:
    assert convert({"rows": [{"number": 1}]}, Outer) == Outer(rows=[Inner(1)])
    with pytest.raises(InvalidRequest) as refused:
        convert(fields, Outer)
    assert (refused.value.message, refused.value.field) == (words, place)


@pytest.mark.parametrize(
    ("unset", "remedy"),
    [
        ((None,), "leave it out"),
        ((None, "off"), 'leave it out, or give "off"'),
        ((None, 0, 1), "leave it out, or give 0 or 1"),
    ],
)
def test_what_is_not_served_is_refused_with_what_asks_for_nothing(unset: tuple[Any, ...], remedy: str) -> None:
    for fields in ({}, *({"name": value} for value in unset)):
        refuse_unsupported(fields, {"name": unset})
    with pytest.raises(InvalidRequest) as refused:
        refuse_unsupported({"name": [2]}, {"name": unset})
    assert refused.value.message == f"`name` is not supported by this server: {remedy}"
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    ("value", "integers", "ids"),
    [
        ([], True, True),
        ([0, 2**31 - 1], True, True),
        ([-1], True, False),
        ([2**31], True, False),
        ([True], False, False),
        ([1.0], False, False),
        ("1", False, False),
        (None, False, False),
    ],
)
def test_what_token_ids_are(value: Any, integers: bool, ids: bool) -> None:
    assert (are_integers(value), are_ids(value)) == (integers, ids)


def test_other_threads_run_while_a_large_text_is_searched() -> None:
    body = b'"' + base64.b64encode(os.urandom(30_000_000)) + b'"'
    searched, turns = threading.Thread(target=json_body._holds, args=(json_body._LONG_NUMBER, body)), 0
    searched.start()
    while searched.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10


@pytest.mark.parametrize("start", range(SLICE - 20, SLICE + 2))
def test_what_lies_across_two_slices_is_found(start: int) -> None:
    assert parse_json(b"[" + b" " * (start - 1) + b"%d]" % (2**64 - 1)) == [2**64 - 1]
    with pytest.raises(MalformedBody, match="does not fit in 64 bits"):
        parse_json(b"[" + b" " * (start - 1) + b"%d]" % 2**64)
    with pytest.raises(MalformedBody, match="surrogate"):
        parse_json(b" " * start + rb'"\ud83d"')
