"""pandas where it is asked for, and not imported yet; tables of libraries that are not installed everywhere."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.notebook.data_frames import import_pandas
from nbgen.notebook.embeddings import embed
from nbgen.notebook.json_value import json_text
from nbgen.notebook.row_data import RowData
from nbgen.notebook.template import fill

#: Ctrl-C comes when half of it is there.
INTERRUPTED = """
import os, signal, sys
import nbgen

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas._libs.tslibs.nattype":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
try:
    nbgen.map(["a"])
except KeyboardInterrupt:
    import pandas
    print(pandas.DataFrame({"n": [1]})["n"].sum())
"""


def test_pandas_works_after_an_interrupt_while_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], check=False, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_pandas_that_is_there_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import_pandas("to_df")
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    import_pandas("to_df")
    assert not started


class ArrowArray(list[Any]):
    """As pyarrow's arrays, which give what is not Python's own where they are iterated over."""

    def __iter__(self) -> Any:
        return iter([object()] * len(self))

    def to_pylist(self) -> list[Any]:
        return self[:]


class ArrowTable:
    """As pyarrow's Table: its items are its columns."""

    def __init__(self, **columns: list[Any]) -> None:
        self.schema = type("Schema", (), {"names": list(columns)})
        self.columns = [ArrowArray(values) for values in columns.values()]

    def __getitem__(self, place: int) -> ArrowArray:
        return self.columns[place]

    def to_pylist(self) -> list[dict[str, Any]]:
        rows = zip(*(column.to_pylist() for column in self.columns), strict=True)
        return [dict(zip(self.schema.names, row, strict=True)) for row in rows]


CITIES = ArrowTable(city=["Oslo", "Rome", None], year=[1900, 2000, 2100])


def test_a_table_of_pyarrow_is_one_of_rows_wherever_tables_are_taken() -> None:
    data = RowData.of(CITIES)
    assert [data.names(place)["city"] for place in range(len(data))] == ["Oslo", "Rome", None]
    assert data.names(1)["row"].year == 2000
    assert fill("{{t}}", {"t": CITIES}).splitlines()[2] == "| Oslo | 1900 |"
    assert json_text(CITIES).startswith('[{"city": "Oslo", "year": 1900}')
    with pytest.raises(InvalidRequest, match="one column of a DataFrame: choose it"):
        embed(CITIES)


def test_an_array_of_pyarrow_has_pythons_own_values() -> None:
    data = RowData.of(CITIES[0])
    assert [data.names(place)["value"] for place in range(len(data))] == ["Oslo", "Rome", None]
    with pytest.raises(InvalidRequest, match="number 2, counted from 0, is None"):
        embed(CITIES[0])
