"""What a model is held to where msgspec's schemas leave a text open is what msgspec reads."""

import dataclasses
import datetime
import json
import re
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbgen
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.schema import Schema

Aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Naive = Annotated[datetime.time, msgspec.Meta(tz=False)]

TEXTS = [
    (
        datetime.datetime,
        ["2024-02-01T10:00:00", "2024-02-01T10:00:00.5+02:00", "2024-02-01T23:59:59Z"],
        ["2024-02-01", "soon"],
    ),
    (Aware, ["2024-02-01T10:00:00Z"], ["2024-02-01T10:00:00"]),
    (datetime.time, ["10:00:00", "10:00:00Z"], ["10:00", "25:00:00", "23:59:60", "at ten"]),
    (Naive, ["10:00:00"], ["10:00:00Z"]),
    (
        datetime.timedelta,
        ["P1D", "PT36H", "-P3DT2S", "P1DT2H3M4.5S", "PT1H4S"],
        ["P8W", "P1Y", "P", "PT", "P1DT", "PT1S1H"],
    ),
    (datetime.date, ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-04-31", "May"]),
    (bytes, ["", "YWJj", "YWI=", "YQ=="], ["YW", "abc", "YW==YQ==", "some text"]),
    (bytearray, ["YWI="], ["YW"]),
]


def pattern(kind: Any) -> str:
    return str(json.loads(Schema(kind).json)["pattern"])


@pytest.mark.parametrize(("kind", "good", "bad"), TEXTS)
def test_a_text_is_what_its_type_reads(kind: Any, good: list[str], bad: list[str]) -> None:
    schema = json.loads(Schema(kind).json)
    assert "format" not in schema
    for text in good:
        assert re.search(schema["pattern"], text)
        Schema(kind).parse(json.dumps(text))
    assert not [text for text in bad if re.search(schema["pattern"], text)]


@given(st.data())
@pytest.mark.parametrize("kind", [datetime.datetime, datetime.date, datetime.time, datetime.timedelta, bytes])
def test_whatever_it_allows_is_read(kind: Any, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(pattern(kind), fullmatch=True, alphabet=st.characters(codec="ascii")))
    Schema(kind).parse(json.dumps(text))


class Entry(TypedDict):
    when: Annotated[datetime.datetime, msgspec.Meta(description="if known")] | None
    pair: tuple[int, datetime.time]
    days: dict[datetime.datetime, int]


def test_it_is_found_wherever_it_stands() -> None:
    days, pair, when = json.loads(Schema(Entry).json)["properties"].values()
    assert when["anyOf"][0]["pattern"] == days["propertyNames"]["pattern"] == pattern(datetime.datetime)
    assert pair["prefixItems"][1]["pattern"] == pattern(datetime.time)
    assert json.loads(Schema(list[datetime.time | int]).json)["items"]["anyOf"][0]["pattern"] == pattern(datetime.time)


@dataclasses.dataclass
class Meeting:
    begins: datetime.datetime
    at: datetime.time
    takes: datetime.timedelta
    key: bytes
    code: Annotated[str, msgspec.Meta(pattern="^[ab]$", max_length=3)]


def test_a_real_model_is_held_to_it(connected: PrivateServer) -> None:
    for seed in range(5):
        value = nbgen.generate("When?", schema=Meeting, sampling_seed=seed, temperature=0.5, max_new_tokens=400)
        assert type(value) is Meeting
