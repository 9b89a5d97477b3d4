"""Any value of a notebook as JSON for a model to read: numbers as numbers, tables as their rows.

Knows the types that people compute with; nothing of what the value means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from types import GeneratorType
from typing import Any

import msgspec

from nbgen.notebook.template import missing, with_index

#: Methods that return plain values: of pydantic's models, of polars' and pyarrow's tables, of arrays and indexes.
CONVERTERS = ("model_dump", "to_dicts", "to_pylist", "tolist")


def json_text(value: Any) -> str:
    """A value as JSON; one without a form in JSON as its `str`, NaN and infinities as null."""
    return json.dumps(json.loads(msgspec.json.encode(value, enc_hook=_plainer)), ensure_ascii=False)


def _plainer(value: Any) -> Any:
    """A value that msgspec does not know, as one that it may know."""
    if value is None or isinstance(value, bool | bytes | tuple | list):  # a dictionary's key
        return json_text(value)
    if _labelled(value):
        return _rows(value)
    for name in CONVERTERS:
        if convert := getattr(value, name, None):
            return convert()
    if missing(value):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Collection | GeneratorType) else _words(value)


def _labelled(value: Any) -> bool:
    """Whether it is a DataFrame or Series of pandas with column names or index labels to keep."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame | pandas.Series):
        return False
    return isinstance(value, pandas.DataFrame) or not isinstance(value.index, pandas.RangeIndex)


def _rows(value: Any) -> Any:
    """A DataFrame as its rows, a Series by its labels, without an index that only counts rows."""
    frame = hasattr(value, "columns")
    if not frame and value.index.is_unique:
        return value.to_dict()
    counted = isinstance(value.index, sys.modules["pandas"].RangeIndex)
    rows = value if frame else value.to_frame()
    return (rows if counted else with_index(rows)).to_dict("records")


def _words(value: Any) -> str:
    """A date of an unknown class in ISO format, as msgspec writes dates; anything else by str()."""
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
