"""What a function returns reaches a model as the value that it is."""

import collections
import dataclasses
import datetime
import enum
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pydantic
import pytest
import torch

from nbgen.notebook.json_value import json_text


class Season(enum.Enum):
    WINTER = "w"


@dataclasses.dataclass
class Weather:
    degrees: float
    days: Any


class Report(pydantic.BaseModel, arbitrary_types_allowed=True):
    day: datetime.date
    weather: Weather | None = None
    rain: Any = None


class Place(msgspec.Struct):
    name: str


ROWS = pd.DataFrame({"town": ["Oslo", "Rom"], "rain": [1.5, math.nan], "day": [pd.Timestamp("2020-02-01"), pd.NaT]})
WRITTEN = [
    {"town": "Oslo", "rain": 1.5, "day": "2020-02-01T00:00:00"},
    {"town": "Rom", "rain": None, "day": None},
]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (np.int64(5), 5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.arange(2000), list(range(2000))),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1.5], requires_grad=True), [1.5]),
        ({"x": np.float64(0.5), "y": [np.int8(1)]}, {"x": 0.5, "y": [1]}),
        (math.nan, None),
        ([1.0, math.inf], [1.0, None]),
        (2**70, 2**70),
        (Season.WINTER, "w"),
        (
            {Season.WINTER: 1, np.int64(2): 3, None: 4, True: 5, ("a", 1): 6},
            {"w": 1, "2": 3, "null": 4, "true": 5, '["a", 1]': 6},
        ),
        (Weather(1.0, (1, 2)), {"degrees": 1.0, "days": [1, 2]}),
        (Place("Rom"), {"name": "Rom"}),
        (Report(day=datetime.date(2020, 2, 1)), {"day": "2020-02-01", "weather": None, "rain": None}),
        (
            [Report(day=datetime.date(2020, 2, 1), rain=np.ones(2)), None],
            [{"day": "2020-02-01", "weather": None, "rain": [1.0, 1.0]}, None],
        ),
        (ROWS, WRITTEN),
        (ROWS.set_index("town"), WRITTEN),
        (ROWS["town"], ["Oslo", "Rom"]),
        (ROWS.iloc[1, :2], {"town": "Rom", "rain": None}),
        (ROWS["town"].value_counts(), {"Oslo": 1, "Rom": 1}),
        (pd.Series([1, 2], index=["a", "a"], name="n"), [{"index": "a", "n": 1}, {"index": "a", "n": 2}]),
        (pd.Index([1, 2]), [1, 2]),
        (pd.NA, None),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (collections.ChainMap({"a": 1}), {"a": 1}),
        ((n for n in (1, 2)), [1, 2]),
        (Decimal("1.50"), "1.50"),
        (Path("/a"), "/a"),
        (None, None),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_a_value_is_told_whole(value: Any, written: Any) -> None:
    assert json.loads(json_text(value)) == written


def test_it_reads_as_json_is_written() -> None:
    assert json_text({"Ort": "Köln", "x": [1, 2]}) == '{"Ort": "Köln", "x": [1, 2]}'


def test_an_index_that_is_called_as_a_column_is_another_field() -> None:
    frame = pd.DataFrame({"city": ["Rome", "Oslo"]}).set_index("city", drop=False)
    assert json.loads(json_text(frame))[0] == {"index_city": "Rome", "city": "Rome"}
    assert json.loads(json_text(pd.concat([frame, frame])["city"]))[3] == {"index_city": "Oslo", "city": "Oslo"}


class Table:
    """As polars has them, which is not installed everywhere."""

    columns = ("a",)

    def to_dicts(self) -> list[dict[str, int]]:
        return [{"a": 1}]


def test_a_table_of_polars_is_its_rows() -> None:
    assert json_text(Table()) == '[{"a": 1}]'
