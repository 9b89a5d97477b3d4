"""pandas where it is asked for: it takes longer to import than all of nbgen, and not everybody has it.

Tables of polars are known by what they have.
"""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeGuard

from nbgen.errors import NbgenError


def import_pandas(name: str) -> Any:
    """The library, for the function of this name. Raises NbgenError where it is not installed.

    A thread imports it: Ctrl-C in the middle would leave a pandas that works no more until the kernel is started again.
    """
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(import_module, "pandas").result()
    except ImportError:
        raise NbgenError(f"{name} returns a pandas DataFrame: pip install pandas") from None


def is_polars(value: object) -> TypeGuard[Any]:
    """Whether it is a DataFrame of polars."""
    return hasattr(value, "iter_rows") and isinstance(getattr(value, "columns", None), list)
