"""A list, a Series or a DataFrame as rows, with the names that a prompt may use. Knows nothing of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook.data_frames import import_pandas, other_table, values


class RowData:
    """Rows by their number, with the `index` of their table and the labels of its `columns`, if it has any."""

    def __init__(self, index: Any, values: list[Any], columns: Any = None) -> None:
        self.index = index
        self.columns = columns
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def of(cls, data: Iterable[Any]) -> RowData:
        """Raises InvalidRequest for data without rows."""
        pandas = import_pandas("nbgen.map")
        if hasattr(data, "__aiter__") and not hasattr(data, "__iter__"):
            words = f"nbgen.map takes rows that are there, and {type(data).__name__} has to be awaited for each: give "
            raise InvalidRequest(f"{words}[row async for row in …]", field="data")
        if isinstance(data, str | bytes) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
            raise InvalidRequest(
                f"nbgen.map takes a list, a Series or a DataFrame, got {type(data).__name__}; for one text there is "
                "nbgen.generate",
                field="data",
            )
        if hasattr(type(data), "collect") and not hasattr(type(data), "iter_rows"):  # polars' LazyFrame, Spark's
            words = f"{type(data).__name__} is a query, which has no rows yet: give its .collect()"
            raise InvalidRequest(words, field="data")
        if isinstance(data, pandas.DataFrame):
            rows = list(data.itertuples(index=False, name=None)) if len(data.columns) else [()] * len(data)
            return cls(data.index, rows, _apart(data.columns))
        if table := other_table(data):
            columns, rows = table
            return cls(pandas.RangeIndex(len(rows)), rows, _apart(columns))
        if isinstance(data, Mapping):
            data = pandas.Series(data, dtype=object)
        items = values(data)
        return cls(data.index if isinstance(data, pandas.Series) else pandas.RangeIndex(len(items)), items)

    def remedy(self, source: str) -> str:
        """How a prompt refers to a column whose label is no Python name, or to an item's member; else empty."""
        whole, labels = ("value", _members(self._values[0])) if self.columns is None else ("row", self.columns)
        label = next((label for label in labels if str(label) == source), None)
        if label is None:
            return ""
        written = json.dumps(label, ensure_ascii=False) if isinstance(label, str) else repr(label)
        return f"Write {{{{{whole}[{written}]}}}}."

    def names(self, number: int) -> dict[str, Any]:
        """The names for a row's prompt: `value`, the item; or the columns, the named levels of the index, and `row`,
        the whole row. Each value keeps its column's type, in `row` too.
        """
        if self.columns is None:
            return {"value": self._values[number]}
        import pandas

        values, label = self._values[number], self.index[number]
        named = dict(zip(map(str, self.columns), values, strict=True))
        levels = zip(self.index.names, label if self.index.nlevels > 1 else [label], strict=True)
        named |= {level: value for level, value in levels if isinstance(level, str) and level not in named}
        # `row.name` is the label in pandas, but people write it for a column; a label that is only a number is left out
        name = named.get("name", None if isinstance(self.index, pandas.RangeIndex) else label)
        name = name if pandas.api.types.is_hashable(name) else None
        return {**named, "row": pandas.Series(list(values), index=self.columns, dtype=object, name=name)}


def _members(item: Any) -> Iterable[Any]:
    return item if isinstance(item, Mapping) else ()


def _apart(columns: Any) -> Any:
    """The columns. Raises InvalidRequest if two have the same name."""
    names = [str(label) for label in columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        words = f"two columns are called {twice!r}: rename one, or a prompt could mean either"
        raise InvalidRequest(words, field="data")
    return columns
