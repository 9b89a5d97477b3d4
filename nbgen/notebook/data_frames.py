"""pandas, imported only when needed: it takes longer to import than all of nbgen, and not everybody has it.

Tables of polars and pyarrow are recognised by their attributes, without importing these libraries.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from nbgen.errors import NbgenError


def import_pandas(name: str) -> Any:
    """The library, for nbgen's function of this name. Raises NbgenError where it is not installed.

    A thread imports it: Ctrl-C during the import would leave a pandas that is broken until the kernel restarts.
    """
    if "pandas" in sys.modules:
        return import_module("pandas")
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(import_module, "pandas").result()
    except ImportError:
        raise NbgenError(f"{name} returns a pandas DataFrame: pip install pandas") from None


def other_table(value: Any) -> tuple[list[str], list[tuple[Any, ...]]] | None:
    """The columns and rows of a table of polars or pyarrow, which iterate over columns instead; else None."""
    columns = getattr(value, "columns", None)
    if hasattr(value, "iter_rows") and isinstance(columns, list):
        return columns, list(value.iter_rows())
    if hasattr(value, "to_pylist") and isinstance(columns, list):
        return value.schema.names, list(zip(*map(values, columns), strict=True)) if columns else [()] * len(value)
    return None


def values(data: Any) -> list[Any]:
    """The items of an iterable, as a list; those of pyarrow's arrays as Python's own values."""
    return list(data.to_pylist() if hasattr(data, "to_pylist") else data)
