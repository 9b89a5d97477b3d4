"""Every way to say what an answer should be gives a JSON schema and a typed value."""

import datetime
import enum
import json
import subprocess
import sys
import uuid
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import annotated_types
import jsonschema
import msgspec
import numpy as np
import pydantic
import pytest

from nbgen.errors import InvalidAnswer, InvalidRequest
from nbgen.notebook.schema import Schema
from nbgen.notebook.table import html_table
from nbgen.notebook.type_spelling import BASE64

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = '{"name": "Pancakes", "minutes": 20, "level": "easy"}'
LEVEL = Literal["easy", "hard"]


@dataclass
class Plain:
    name: str
    minutes: int
    level: LEVEL


class Struct(msgspec.Struct):
    name: str
    minutes: int
    level: LEVEL


class Model(pydantic.BaseModel):
    name: str
    minutes: int
    level: LEVEL


@pytest.mark.parametrize("kind", [Plain, Struct, Model])
def test_a_class_gives_its_own_objects(kind: Any) -> None:
    schema = Schema(kind)
    fields = msgspec.json.decode(schema.json)
    assert fields["type"] == "object"
    assert list(fields["properties"]) == fields["required"] == ["name", "minutes", "level"]
    value = schema.parse(TEXT)
    assert type(value) is kind
    assert (value.name, value.minutes, value.level) == ("Pancakes", 20, "easy")


def test_a_json_schema_gives_a_dict_that_shows_itself() -> None:
    value = Schema({"type": "object"}).parse(TEXT)
    assert value["minutes"] == 20
    assert "<table>" in value._repr_html_()
    assert Schema({"type": "array"}).parse("[1]") == [1]
    assert json.loads(Schema({"maximum": np.int64(3)}).json)["maximum"] == 3


def test_other_types_work_too() -> None:
    assert Schema(list[int]).parse("[1, 2]") == [1, 2]
    assert Schema(list[Plain]).parse(f"[{TEXT}]")[0].minutes == 20


def test_types_with_models_of_pydantic_in_them_work_too() -> None:
    for kind in (list[Model], pydantic.TypeAdapter(list[Model])):
        (value,) = Schema(kind).parse(f"[{TEXT}]")
        assert (type(value), value.minutes) == (Model, 20)
    assert Schema(Model | None).parse("null") is None
    assert Schema(Model | None).parse(TEXT).name == "Pancakes"
    assert "Pancakes" in str(Schema(Annotated[Model, "a note"]).parse(TEXT))
    assert "Pancakes" in html_table([Schema(Model).parse(TEXT)])
    with pytest.raises(InvalidAnswer, match="does not fit the schema"):
        Schema(list[Model]).parse("[{}]")


class Holder(msgspec.Struct, tag=True):
    levels: dict[LEVEL, int]


class Other(msgspec.Struct, tag=True):
    levels: dict[Literal["low", "high"], int]


NAMED = {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["easy", "hard"]}}


def fields(kind: Any) -> Any:
    """A kind's schema without what all of them say."""
    schema = json.loads(Schema(kind).json)
    assert schema.pop("x-guidance")["whitespace_flexible"] is False
    return schema


def test_the_keys_of_a_dictionary_of_literals_are_named_wherever_it_stands() -> None:
    assert fields(dict[LEVEL, int]) == NAMED
    assert fields(list[dict[LEVEL, int]])["items"] == NAMED
    assert fields(dict[str, dict[LEVEL, int]])["additionalProperties"] == NAMED
    assert NAMED in fields(None | dict[LEVEL, int] | str)["anyOf"]
    assert {"type": "array", "items": NAMED} in fields(None | list[dict[LEVEL, int]])["anyOf"]
    assert "propertyNames" not in Schema(dict[str, int]).json


class Level(enum.Enum):
    others: "Sequence[Level]"

    EASY = "easy"
    HARD = "hard"


class Grade(enum.IntEnum):
    ONE = 1
    TWO = 2


DAY, ID = datetime.date(2020, 2, 1), uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Level, {Level.HARD: 1}, "blue"),
        (Grade, {Grade.TWO: 1}, "3"),
        (Literal[1, 2], {2: 1}, "3"),
        (int, {-30: 1, 0: 2}, "03"),
        (float, {-0.5: 1, 30.0: 2}, "03.5"),
        (datetime.date, {DAY: 1}, "May"),
        (uuid.UUID, {ID: 1}, "5"),
    ],
)
def test_keys_are_of_their_type(kind: Any, good: dict[Any, int], bad: str) -> None:
    schema = Schema(dict[kind, int])  # type: ignore[valid-type]
    written = msgspec.json.encode(good).decode()
    assert schema.parse(written) == good
    check = jsonschema.Draft202012Validator(
        msgspec.json.decode(schema.json), format_checker=jsonschema.FormatChecker(["date", "uuid"])
    )
    assert check.is_valid(msgspec.json.decode(written))
    assert not check.is_valid({bad: 1})


@pytest.mark.parametrize(
    "kind", [Holder, Holder | None, None | Holder, Holder | int, Other | Holder, None | Other | Holder]
)
def test_they_are_named_in_every_class_of_a_union(kind: Any) -> None:
    schema = fields(kind)
    classes = {"Holder": schema, **schema.get("$defs", {})}
    assert classes["Holder"]["properties"]["levels"] == NAMED
    if "Other" in classes:
        assert classes["Other"]["properties"]["levels"]["propertyNames"] == {"enum": ["high", "low"]}


def test_what_no_grammar_can_hold_is_left_to_reading() -> None:
    prices = Schema(dict[str, Decimal])
    assert "format" not in prices.json
    assert prices.parse('{"a": "1.50"}') == {"a": Decimal("1.50")}
    assert "uniqueItems" not in Schema(set[int]).json
    assert "uniqueItems" not in Schema(set[int] | None).json
    assert Schema(set[int]).parse("[1, 2, 1]") == {1, 2}
    own = {"type": "object", "properties": {"format": {"type": "string", "format": "x"}}}
    assert fields(own) == own


def test_a_schema_may_leave_white_space_to_the_model() -> None:
    own = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
    assert json.loads(Schema(own).json) == own


class Link(pydantic.BaseModel):
    address: pydantic.HttpUrl
    code: Annotated[str, pydantic.Field(pattern="^a+$", max_length=3)]
    dozen: Annotated[int, pydantic.Field(multiple_of=12)]
    multipleOf: dict[str, int]
    raw: pydantic.Base64Bytes


class Code(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(pattern="^a+$", max_length=3)]
    dozen: Annotated[int, msgspec.Meta(multiple_of=12)]


def test_of_what_grammars_do_not_combine_reading_checks_the_rest() -> None:
    link, code = fields(Link)["properties"], fields(Code)["properties"]
    assert link["address"] == {"format": "uri", "title": "Address", "type": "string"}
    assert link["multipleOf"]["additionalProperties"] == {"type": "integer"}
    assert link["raw"]["pattern"] == BASE64
    for each in (link, code):
        assert each["code"]["pattern"] == "^a+$"
        assert not {"maxLength", "multipleOf"} & {*each["code"], *each["dozen"]}
    for wrong in ('{"code": "aaaa", "dozen": 12}', '{"code": "a", "dozen": 13}'):
        with pytest.raises(InvalidAnswer, match="does not fit the schema"):
            Schema(Code).parse(wrong)


@dataclass
class Rated:
    stars: Annotated[int, pydantic.Field(ge=1, le=5, description="how good")]
    others: "list[Rated]" = field(default_factory=list)


@pydantic.dataclasses.dataclass
class Checked:
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        raise ValueError("no name")


class Ratings(TypedDict):
    best: Rated
    text: Annotated[str, annotated_types.MaxLen(9)]


def test_what_is_said_to_pydantic_holds_wherever_it_stands() -> None:
    for kind in (Rated, list[Rated], Rated | None, Annotated[Rated, "best"]):
        schema = Schema(kind)
        assert '"minimum": 1' in schema.json.replace("1.0", "1")
        assert "how good" in schema.json
        text = '{"stars": 9}' if "list" not in str(kind) else '[{"stars": 9}]'
        with pytest.raises(InvalidAnswer, match="less than or equal to 5"):
            schema.parse(text)
    assert Schema(Rated).parse('{"stars": 2, "others": [{"stars": 3}]}') == Rated(2, [Rated(3)])
    for kind, text in ((Checked, '{"name": "x"}'), (list[Checked], '[{"name": "x"}]')):
        with pytest.raises(InvalidAnswer, match="Value error, no name"):
            Schema(kind).parse(text)
    if sys.version_info >= (3, 12):  # before, pydantic takes no TypedDict of typing's
        assert fields(Ratings)["properties"]["text"]["maxLength"] == 9
    with pytest.raises(InvalidRequest, match="limits and words say nothing to a type of msgspec"):
        Schema(msgspec.defstruct("Odd", [("stars", Rated.__annotations__["stars"])]))


@pytest.mark.parametrize("kind", [Plain, Struct, Model, {"type": "object"}])
@pytest.mark.parametrize("text", ['{"name": "x', "so", '{"name": 1}'])
def test_what_does_not_fit_is_said(kind: Any, text: str) -> None:
    if isinstance(kind, dict) and text.endswith("}"):
        return
    with pytest.raises(InvalidAnswer, match="does not fit the schema"):
        Schema(kind).parse(text)


class Tree(msgspec.Struct):
    children: list["Tree"]


@pytest.mark.parametrize("kind", [Tree, {"type": "array"}])
def test_brackets_without_an_end_fit_no_schema(kind: Any) -> None:
    with pytest.raises(InvalidAnswer, match="does not fit the schema"):
        Schema(kind).parse('{"children": [' * 10**5 if kind is Tree else "[" * 10**5)


class Untyped:
    pass


class Arrays(pydantic.BaseModel, arbitrary_types_allowed=True):
    x: np.ndarray


def test_a_class_is_told_once_unless_it_holds_others_of_its_own() -> None:
    assert "$defs" not in fields(Plain)
    assert list(fields(make_dataclass("Both", [("a", Plain), ("b", list[Struct])]))["$defs"]) == ["Plain", "Struct"]
    tree = fields(Tree)
    assert tree["properties"] == tree["$defs"]["Tree"]["properties"]
    assert Schema(Tree).parse('{"children": [{"children": []}]}') == Tree([Tree([])])


def test_a_union_of_dataclasses_needs_nobody_to_have_imported_pydantic() -> None:
    script = (
        "import sys; from dataclasses import make_dataclass as made; from nbgen.notebook.schema import Schema\n"
        "cat, dog = made('Cat', [('lives', int)]), made('Dog', [('legs', int)])\n"
        "assert 'pydantic' not in sys.modules\n"
        "assert Schema(cat | dog).parse('{\"legs\": 4}') == dog(4)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def quoted() -> list[tuple[Any, str]]:
    @dataclass
    class Inner:
        a: int

    @dataclass
    class Outer:
        inner: "Inner"

    odd = enum.Enum("odd", {"A": object()})
    return [
        (Outer, r"pydantic model: name 'Inner' is not defined outside of functions"),
        (list[Outer], r"name 'Inner' is not defined"),
        (odd, r"pydantic model: Unable to serialize unknown type"),
    ]


@pytest.mark.parametrize(("kind", "words"), quoted())
def test_a_type_that_cannot_be_told_is_refused(kind: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        Schema(kind)


def test_what_is_no_schema_is_refused() -> None:
    for wrong in (lambda: None, '{"type": "object"}', "Missing"):
        with pytest.raises(InvalidRequest, match="schema must be"):
            Schema(wrong)
    for kind in (Plain, Struct, Model):
        with pytest.raises(InvalidRequest, match=f"got an object of {kind.__name__}; give the class itself"):
            Schema(kind(name="a", minutes=1, level="easy"))
    with pytest.raises(InvalidRequest, match=r"this dict is none .*; names with Python types are a dataclass"):
        Schema({"name": str})
    with pytest.raises(InvalidRequest, match=r"is none .none of its names says what a value is, as type does"):
        Schema({"name": "string", "age": "integer"})
    for wrong in (Arrays, list[Arrays]):
        with pytest.raises(InvalidRequest, match=r"pydantic model: Cannot generate .*numpy\.ndarray"):
            Schema(wrong)
    with pytest.raises(InvalidRequest) as refused:
        Schema(Untyped)
    assert str(refused.value).endswith(
        "a pydantic model: type <class 'tests.notebook.test_schema.Untyped'> is not supported"
    )
