"""The rows of a map without a server: what they ask, what a result of before gives them, and the table they make."""

import math
from collections.abc import AsyncIterator
from typing import Any, Literal

import pandas as pd
import pytest

from nbgen.errors import InvalidRequest
from nbgen.notebook.media import as_text
from nbgen.notebook.rows import Rows, _apart
from nbgen.notebook.schema import Schema
from tests.notebook.test_map import PolarsFrame

PLAIN = {"complete": True, "system": None, "options": {}}


def prepared(data: Any, prompt: Any = "{{value}}", schema: Any = None, **options: Any) -> Rows:
    rows = Rows(data, prompt, Schema(schema) if schema else None, {})
    rows.prepare(**{**PLAIN, **options})
    return written(rows)


def written(rows: Rows) -> Rows:
    """As when each has had its turn."""
    for number in range(len(rows.results)):
        rows.write(number)
    return rows


def ended(rows: Rows, place: int, text: str, reason: str = "stop", **usage: int) -> None:
    result = rows.results[place]
    result.text, result.finish_reason, result.ttft_s, result.usage = text, reason, 0.5, usage


@pytest.mark.parametrize(
    ("data", "index", "asked"),
    [
        (["a", 1, 2.5], [0, 1, 2], ["a", "1", "2.5"]),
        ((word for word in "ab"), [0, 1], ["a", "b"]),
        (pd.Series([1, 2], index=["x", "y"]), ["x", "y"], ["1", "2"]),
        ({"x": 1, "y": 2.5}, ["x", "y"], ["1", "2.5"]),
        ({"x": 2**53 + 1, "y": 0.5}, ["x", "y"], ["9007199254740993", "0.5"]),
        (pd.DataFrame({"value": [True]}, index=["x"]), ["x"], ["True"]),
        (pd.DataFrame({"value": []}), [], []),
        (pd.DataFrame(index=pd.Index(["x", "y"], name="value")), ["x", "y"], ["x", "y"]),
        ([], [], []),
        ({}, [], []),
    ],
)
def test_every_kind_of_data_has_rows_and_an_index(data: Any, index: list[Any], asked: list[str]) -> None:
    rows = prepared(data)
    assert [result.prompt for result in rows.results] == asked
    assert rows.to_df().index.tolist() == index
    assert [number for number, _ in rows.open()] == list(range(len(index)))


@pytest.mark.parametrize("prompt", [None, 5, ["{{value}}"]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    for data in (["a"], []):
        with pytest.raises(InvalidRequest, match="prompt is a template or a function of the row, got "):
            prepared(data, prompt)


async def awaited(row: Any) -> str:
    return str(row)


async def endless() -> AsyncIterator[str]:
    while True:
        yield "a"


def test_what_has_to_be_awaited_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"a coroutine function, .* without async"):
        prepared(["a"], awaited)
    with pytest.raises(InvalidRequest, match=r"async_generator has to be awaited .* \[row async for row in …\]"):
        prepared(endless())


@pytest.mark.parametrize("data", [5, None, "text", b"text", object()])
def test_what_has_no_rows_is_refused(data: Any) -> None:
    with pytest.raises(InvalidRequest, match="a list, a Series or a DataFrame"):
        prepared(data)


FRAME = pd.DataFrame({"city": ["Oslo"], "picture": ["a.png"]})


@pytest.mark.parametrize(
    ("data", "prompt", "column", "name"),
    [
        (["a"], "Good or bad? {value}", None, "value"),
        (["a"], "Good or bad?", None, "value"),
        (FRAME, "Where is {city}?", None, "city"),
        (FRAME, "Where is it?", None, "city"),
        (FRAME, "{picture}: where is it?", "picture", "picture"),
    ],
)
def test_a_prompt_with_nothing_of_the_rows_is_refused(data: Any, prompt: str, column: str | None, name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"nothing of the rows in it: write \{{\{{{name}\}}\}}"):
        Rows(data, prompt, None, {"images": column}).prepare(**PLAIN)


ODD = pd.DataFrame({"my col": ["x"], "class": ["y"], "a-b": ["z"], 2020: [1], "user.name": ["u"], "a": [None]})


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("{{my col}}", '{{my col}}: is not a Python expression. Write {{row["my col"]}}.'),
        ("{{ class }}?", 'Write {{row["class"]}}.'),
        ("{{b}}", "name 'b' is not defined. There are row and the columns my col, class, a-b, 2020, user.name, a."),
        ("{{a}} {{b}}", "name 'b' is not defined"),
        ("{{2020}}", "{{2020}}: is no name in Python. Write {{row[2020]}}."),
        ("{{user.name}}", 'Write {{row["user.name"]}}.'),
        ("{{is here}}", "{{is here}}: is not a Python expression. There are row and the columns my col"),
        ("{{a}} or {{}}", "is not a Python expression"),
        ("{{ unclosed", "nothing of the rows in it"),
    ],
)
def test_a_prompt_that_is_wrong_for_every_row_is_refused_with_what_to_write(prompt: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prepared(ODD, prompt)
    assert words in str(refused.value)


def test_what_is_to_be_written_works() -> None:
    prompt = '{{row["my col"]}}{{row["class"]}}{{row["a-b"]}}{{row[2020]}}{{row["user.name"]}}'
    assert prepared(ODD, prompt).results[0].prompt == "xyz1u"
    with pytest.raises(InvalidRequest, match="There is only value, the item"):
        prepared(["a"], "{{the value}}")
    with pytest.raises(InvalidRequest, match=r'name \'a\' is not defined. Write \{\{value\["a"\]\}\}\.'):
        prepared([{"a": 1}], "{{a}}")
    assert prepared([{"a": 1}], '{{value["a"]}}').results[0].prompt == "1"


def test_a_level_of_the_index_has_a_name_as_columns_have() -> None:
    frame = pd.DataFrame(
        {"name": ["Anna"], "tags": [["x"]]}, index=pd.MultiIndex.from_tuples([(1, 2)], names=["id", 0])
    )
    assert prepared(frame, "{{id}} {{name}} {{row.name}}").results[0].prompt == "1 Anna Anna"
    assert prepared(frame.drop(columns="name"), lambda row: f"{row.name[1]}").results[0].prompt == "2"
    assert prepared(frame.rename(columns={"name": "id"}), "{{id}}").results[0].prompt == "Anna"
    odd = frame[["tags"]].rename(columns={"tags": "name"})
    assert prepared(odd, "{{name}} {{row.name}} {{row['name']}}").results[0].error == "row.name is missing"
    assert prepared(frame.reset_index(drop=True)[["tags"]], "{{row}}").results[0].prompt.startswith("| index | 0 |")
    with pytest.raises(InvalidRequest, match="There are row and the columns name, tags, id"):
        prepared(frame, "{{age}}")


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    for columns in (["a", "b", "a"], ["1", 1]):
        with pytest.raises(InvalidRequest, match=f"two columns are called '{columns[0]}': rename one"):
            prepared(pd.DataFrame([[1] * len(columns)], columns=columns), "{{a}}")


class Lazy:
    """As polars' LazyFrame is: a table that is not there yet."""

    def collect(self) -> None:
        raise AssertionError

    def __getitem__(self, item: Any) -> None:
        raise TypeError("LazyFrame is not subscriptable")


def test_a_table_that_is_not_there_yet_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match=r"Lazy is a query.*give its \.collect\(\)"):
        prepared(Lazy())


def test_a_function_may_ask_the_same_of_all_and_braces_are_text_beside_something_of_the_row() -> None:
    assert prepared(["a", "b"], lambda item: "joke").results[1].prompt == "joke"
    assert prepared(["a"], "{value} {{value}}").results[0].prompt == "{value} a"
    assert prepared([], "joke").results == []


def test_a_function_is_asked_with_the_item_or_the_row() -> None:
    assert prepared([1, 2], lambda item: f"{item + 1}").results[1].prompt == "3"
    frame = pd.DataFrame({"value": ["x"], "row": ["y"]})
    assert prepared(frame, lambda row: row["value"] + row["row"]).results[0].prompt == "xy"


def test_media_come_from_a_column_or_a_function_and_may_be_missing() -> None:
    frame = pd.DataFrame({"photo": ["data:image/png;base64,iVBORw0KGgo=", None, float("nan")]})
    for column in ("photo", lambda row: row["photo"]):
        rows = Rows(frame, "what?", None, {"images": column})
        rows.prepare(complete=False, system=None, options={})
        written(rows)
        assert not any(result.error for result in rows.results)
        contents = [result.messages[-1]["content"] for result in rows.results if result.messages]
        assert [as_text(content) for content in contents] == ["[image]\nwhat?", "what?", "what?"]


def test_the_table_has_a_row_an_index_label_and_types_for_counts() -> None:
    rows = prepared(pd.Series(["a", None, "c", "d"], index=list("wxyz")))
    ended(rows, 0, "", prompt_tokens=3, completion_tokens=0, cached_tokens=1)
    ended(rows, 3, "half", "abort", completion_tokens=1)
    rows.results[2].error = "no"
    table = rows.to_df()
    assert list(table) == [
        "text",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "ttft_s",
        "error",
    ]
    assert table.text.isna().tolist() == [False, True, True, False]
    assert table.text.tolist()[::3] == ["", "half"]
    assert table.error.tolist()[1:3] == ["value is missing", "no"]
    assert table.error.isna().tolist() == [True, False, False, True]
    assert str(table.completion_tokens.dtype) == "Int64"
    assert [number for number, _ in rows.open()] == [3]


def test_typed_fields_come_first_and_what_is_no_value_is_an_error() -> None:
    rows = prepared(["a", "b", "c"], schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    ended(rows, 0, '{"n": 1, "text": "x"}')
    ended(rows, 1, '{"n": ', "length", completion_tokens=2)
    table = rows.to_df()
    assert list(table)[:3] == ["n", "value_text", "text"]
    assert table.n.tolist()[0] == 1
    assert table.value_text.tolist()[0] == "x"
    assert "before it was whole" in table.error[1]
    assert table.error.isna().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ({"type": "object", "properties": {"n": {"type": "integer"}, "text": {}}}, ["n", "value_text"]),
        (int, ["value"]),
        (Literal["good", "bad"], ["value"]),
        (dict[str, int], []),
        (dict[str, int] | int, []),
        (None, []),
    ],
)
def test_fields_have_columns_where_no_row_has_a_value(schema: Any, columns: list[str]) -> None:
    failed = prepared(["a"], schema=schema)
    ended(failed, 0, "no JSON")
    for rows in (prepared([], schema=schema), failed):
        assert list(rows.to_df()) == [*columns, *prepared([]).to_df()]


def test_thoughts_have_a_column_where_there_are_some() -> None:
    schema = {"type": "object", "properties": {"reasoning": {"type": "string"}}}
    for given, columns in ((None, ["text", "reasoning"]), (schema, ["value_reasoning", "text", "reasoning"])):
        rows = prepared(["a", "b"], schema=given)
        for place, thoughts in enumerate(("so", "")):
            ended(rows, place, '{"reasoning": "field"}')
            rows.results[place].reasoning = thoughts
        table = rows.to_df()
        assert list(table)[: len(columns)] == columns
        assert table.reasoning.fillna("none").tolist() == ["so", "none"]
        again = prepared(["a", "b"], schema=given)
        again.take(table)
        assert again.to_df().equals(table)
    rows = prepared(["a"], schema=schema)
    ended(rows, 0, '{"reasoning": "field"}')
    again = prepared(["a"], schema=schema)
    again.take(rows.to_df())
    assert again.results[0].reasoning == ""


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"a": 1}, {"a": 1}),
        ({"text": 1}, {"value_text": 1}),
        ({"text": 1, "value_text": 2}, {"value_value_text": 1, "value_text": 2}),
        ({"value_text": 2, "text": 1}, {"value_text": 2, "value_value_text": 1}),
        ({}, {}),
    ],
)
def test_no_two_columns_have_one_name(fields: dict[str, int], named: dict[str, int]) -> None:
    assert _apart(fields, ["text", "error"]) == named


def test_rows_that_were_whole_are_taken_and_only_those() -> None:
    before = prepared(list("abcdx"))
    ended(before, 4, "X")
    ended(before, 0, "A", prompt_tokens=3, completion_tokens=1, cached_tokens=0)
    ended(before, 1, "B", "length", completion_tokens=2)
    ended(before, 2, "C", "abort", completion_tokens=1)
    rows = prepared(pd.Series(["d", "c", "b", "a", "e"], index=[3, 2, 1, 0, 9]))
    rows.take(before.to_df())
    assert [result.text for result in rows.results] == ["", "", "B", "A", ""]
    assert [number for number, _ in rows.open()] == [0, 1, 4]
    assert rows.results[3].usage == {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 0}
    assert rows.results[2].usage == {"completion_tokens": 2}
    again = rows.to_df()
    assert again.completion_tokens.isna().tolist() == [True, True, False, False, True]


def test_a_table_that_was_a_file_meanwhile_is_taken(tmp_path: Any) -> None:
    before = prepared(["a", "b"])
    ended(before, 0, "", completion_tokens=0)
    before.to_df().to_csv(tmp_path / "rows.csv")
    rows = prepared(["a", "b"])
    rows.take(pd.read_csv(tmp_path / "rows.csv", index_col=0))
    assert (rows.results[0].text, rows.results[0].usage) == ("", {"completion_tokens": 0})
    assert math.isclose(rows.results[0].ttft_s or 0, 0.5)


@pytest.mark.parametrize(
    "index",
    [pd.Index([1.0, math.nan]), pd.Index(["a", None]), pd.MultiIndex.from_tuples([("a", math.nan), ("b", 1.0)])],
)
def test_a_label_that_is_missing_is_one_as_well(index: Any) -> None:
    before = prepared(pd.Series(["a", "b"], index=index))
    for place, text in enumerate("AB"):
        ended(before, place, text)
    rows = prepared(pd.Series(["a", "b"], index=index))
    rows.take(before.to_df())
    assert [result.text for result in rows.results] == ["A", "B"]


def test_a_table_of_another_library_is_no_earlier_result() -> None:
    earlier = PolarsFrame(**prepared(["a"]).to_df().to_dict("list"))
    with pytest.raises(InvalidRequest, match=r"resume is the pandas DataFrame that nbgen.map returned, got <class"):
        prepared(["a"]).take(earlier)


def test_labels_that_are_there_twice_are_refused() -> None:
    once = prepared(["a", "b"])
    twice = prepared(pd.Series(["a", "b"], index=[0, 0]))
    for rows, earlier in ((once, twice.to_df()), (twice, once.to_df())):
        with pytest.raises(InvalidRequest, match="unique"):
            rows.take(earlier)
