"""Typed objects from the real server: every way to say the type, streams, maps, magics, other dialects."""

import datetime
import enum
import json
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

import msgspec
import pydantic
import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from nbgen.errors import InvalidAnswer, InvalidRequest
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.schema import Schema

OPTIONS = {"temperature": 0, "max_new_tokens": 200}


@dataclass
class Verdict:
    mood: Literal["good", "bad"]
    sure: bool


class Struct(msgspec.Struct):
    mood: Literal["good", "bad"]


class Model(pydantic.BaseModel):
    mood: Literal["good", "bad"]


JSON = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("kind", [Verdict, Struct, Model])
def test_an_answer_is_an_object_of_the_class(connected: PrivateServer, kind: type) -> None:
    value = nbgen.generate("How was it?", schema=kind, **OPTIONS)
    assert type(value) is kind
    assert value.mood in ("good", "bad")


def test_several_answers_are_refused_where_one_object_is_returned(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="n: one answer has place here"):
        nbgen.generate("How was it?", schema=Struct, n=2, **OPTIONS)
    stream = nbgen.stream("How was it?", schema=Struct, n=2, **OPTIONS)
    assert "".join(stream)
    assert len(stream.result.texts) == 2


def test_a_json_schema_gives_a_dict(connected: PrivateServer) -> None:
    assert nbgen.generate("How was it?", schema=JSON, **OPTIONS)["mood"] in ("good", "bad")


def test_types_that_grammars_do_not_know_in_whole_are_asked_for(connected: PrivateServer) -> None:
    class Odd(pydantic.BaseModel):
        price: Decimal
        tags: set[int]
        data: bytes

    for kind in (Odd, list[Odd], Decimal, set[int], dict[int, bool], dict[datetime.date, bool], dict[uuid.UUID, float]):
        stream = nbgen.stream("How was it?", schema=kind, temperature=0, max_new_tokens=4)
        assert "".join(stream)


@dataclass
class Counted:
    of: list[dict[Literal["a", "b"], bool]]
    again: "Counted | None"


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


def test_keys_of_a_dict_are_held_to_their_literals(connected: PrivateServer) -> None:
    fields = json.loads(Schema(Counted).json)["properties"]
    assert fields["of"]["items"]["propertyNames"] == {"enum": ["a", "b"]}
    value = nbgen.generate("How was it?", schema=dict[Literal["good", "bad"], Literal["very"]], **OPTIONS)
    assert value.keys() <= {"good", "bad"}
    assert value
    assert nbgen.generate("How was it?", schema=dict[Mood, Literal["very"]], **OPTIONS).keys() <= set(Mood)


async def test_a_stream_has_the_object_as_its_value(connected: PrivateServer) -> None:
    stream = nbgen.stream("How was it?", schema=Verdict, **OPTIONS)
    assert "".join(stream) == stream.result.text
    assert stream.result.value == (await nbgen.stream("How was it?", schema=Verdict, **OPTIONS)).value


def test_an_answer_that_was_cut_off_is_no_object(connected: PrivateServer) -> None:
    with pytest.raises(InvalidAnswer, match=r"before it was whole .*cut off at max_new_tokens=3\)") as caught:
        nbgen.generate("How was it?", schema=Verdict, temperature=0, max_new_tokens=3)
    assert caught.value.result.finish_reason == "length"
    with pytest.raises(InvalidAnswer, match=r"cut off at the context's end\): a shorter prompt"):
        nbgen.generate("x" * 16_375, schema=Verdict, temperature=0)


def test_fields_become_columns(connected: PrivateServer) -> None:
    rows = nbgen.map(["a", "b"], "How was {{value}}?", schema=Verdict, progress=False, **OPTIONS)
    assert rows.columns.tolist()[:3] == ["mood", "sure", "text"]
    assert rows.mood.isin(["good", "bad"]).all()
    assert rows.sure.isin([True, False]).all()
    short = nbgen.map(["a"], schema=Verdict, progress=False, temperature=0, max_new_tokens=3)
    assert "before it was whole" in short.error[0]


def test_the_magic_takes_a_schema_by_name(shell: InteractiveShell) -> None:
    shell.user_ns["Verdict"] = Verdict
    outcome = shell.run_cell("%%nbgen --schema Verdict -t 0 --out verdict\nHow was it?")
    assert outcome.success
    assert type(shell.user_ns["verdict"].value) is Verdict


def test_other_dialects_hold_to_schemas_too(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="openai")
    assert nbgen.generate("How was it?", schema=Verdict, **OPTIONS).mood in ("good", "bad")
    client.close()
