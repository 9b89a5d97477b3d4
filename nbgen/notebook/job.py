"""Answers the rows of one `nbgen.map`, from the cache or by the server, while a line shows the progress.

Knows how many rows are done; nothing of what they ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

from nbgen.notebook.batch import Batch
from nbgen.notebook.display import ProgressLine
from nbgen.notebook.interrupts import TICK_SECONDS
from nbgen.notebook.result import Result
from nbgen.notebook.row_cache import RowCache
from nbgen.notebook.rows import DONE, Rows


class Job:
    """Has `batch` answer the open rows of `work`; `kept` is the cache of earlier answers."""

    def __init__(self, work: Rows, batch: Batch, kept: RowCache | None) -> None:
        self._work = work
        self._batch = batch
        self._kept = kept
        self._keys: dict[int, str] = {}
        #: How many rows an earlier result or the cache has answered.
        self._known = sum(result.finish_reason in DONE for result in work.results)
        self._next_line = 0.0

    def run(self, progress: bool, over: Callable[[], None]) -> None:
        """Answer all open rows. A line shows the progress until the end. `over` is passed to `Batch.run`."""
        line = ProgressLine() if progress and any(self._work.open()) else None
        started = time.monotonic()

        def tick() -> None:
            if line is not None and time.monotonic() >= self._next_line:
                line.show(*self.progress(time.monotonic() - started))
                self._next_line = time.monotonic() + TICK_SECONDS

        try:
            tick()
            whole = self._batch.run(self._rows(), self._ended, tick, over)
            self._next_line = 0.0
            tick()  # the last state of the line, which output into a file ends with
        finally:
            if line is not None:
                line.clear()
        self._tell(whole)

    def progress(self, seconds: float) -> tuple[str, float]:
        """How far the rows are after so many seconds, in words and as a fraction."""
        batch, total = self._batch, len(self._work.results)
        asked, failed = batch.answered + batch.failed, sum(bool(each.error) for each in self._work.results)
        done = self._known + batch.answered + failed
        left = timedelta(seconds=round(seconds * (total - done) / asked)) if asked else None
        parts = [
            f"{done} of {total} rows",
            f"{failed} failed" if failed else None,
            f"{batch.tokens / max(seconds, 1e-9):.0f} tokens/s",
            f"{left} left" if left else None,
        ]
        return " · ".join(part for part in parts if part), done / total

    def _rows(self) -> Iterator[tuple[int, Result]]:
        """The rows to be sent to the server. The prompt of each is made when its turn comes."""
        for number, result in enumerate(self._work.results):
            if result.finish_reason in DONE:
                self._count(number)
            elif self._work.write(number) and not self._is_kept(number, result):
                yield number, result

    def _count(self, number: int) -> None:
        """Have the cache count a row that an earlier result has answered: it numbers the rows that ask the same."""
        if self._kept is not None:
            with suppress(Exception):  # the row has an answer, even if its prompt fails now
                self._kept.key(self._work.question(number))

    def _is_kept(self, number: int, result: Result) -> bool:
        if self._kept is None:
            return False
        key = self._keys[number] = self._kept.key(result)
        model = self._batch.model or self._kept.model
        if not self._kept.knows(key, model) or not self._batch.is_of(model):
            return False
        self._kept.fill(key, model, result)
        self._known += 1
        result.let_go()
        return True

    def _ended(self, number: int) -> None:
        if self._kept is not None:
            self._kept.keep(self._keys[number], self._work.results[number])

    def _tell(self, whole: bool) -> None:
        if self._kept is not None and self._kept.failure is not None:
            print(f"The cache takes no more rows, which only this result has: {self._kept.failure}")
        if not whole:
            left, change = [result for _, result in self._work.open()], self._batch.change
            rows = f"{len(left)} of {len(self._work.results)} rows to do{f', as {change}' if change else ''}"
            print(f"Stopped with {rows}: pass this result as resume= to do the rest.")
            for result in left:
                result.error = change or None
