"""The errors of this session's cells, by number: what `{{Err[3]}}` and `%nbgen fix` read.

Knows IPython's results of cells; nothing of models.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, NamedTuple

import IPython

from nbgen.notebook.magic_line import below_comments

_INTERNAL = str(Path(IPython.__file__).parent)


class CellError(NamedTuple):
    """A cell that failed, and its traceback as text."""

    source: str
    traceback: str


class CellErrors:
    """Remembers the last `KEEP` errors. It is `Err` in a prompt: `Err[3]` is the traceback of cell 3."""

    KEEP = 100

    def __init__(self) -> None:
        self._cells: dict[int, CellError] = {}

    def record(self, result: Any) -> None:
        """For IPython's `post_run_cell`: note a failed cell, unless it was interrupted or is only nbgen's magic."""
        error = result.error_before_exec or result.error_in_exec
        if error is None or isinstance(error, KeyboardInterrupt) or result.execution_count is None:
            return
        source = below_comments(result.info.raw_cell).strip()
        if source.startswith("%%nbgen") or (source.startswith("%nbgen") and "\n" not in source):
            return
        self._cells[result.execution_count] = CellError(result.info.raw_cell, _traceback(error))
        for old in list(self._cells)[: -self.KEEP]:
            del self._cells[old]

    def last(self, number: int | None = None) -> CellError:
        """The newest error, or that of cell `number`. Raises KeyError if there is none."""
        if number is None:
            number = max(self._cells, default=0)
        if number not in self._cells:
            raise KeyError(f"cell {number} has no error" if number else "no cell has failed yet")
        return self._cells[number]

    def numbers(self) -> list[int]:
        """The cells that have failed, the newest first."""
        return sorted(self._cells, reverse=True)

    def __getitem__(self, number: int) -> str:
        return self.last(number).traceback


def _traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without IPython's own frames at its beginning."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(_INTERNAL):
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place)).rstrip()
