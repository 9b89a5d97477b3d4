"""`nbgen.map`: a prompt for every row of a list, a Series or a DataFrame, and a DataFrame of the answers.

What a row asks is the rows' own, how prompts reach the server the batch's.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.batch import Batch
from nbgen.notebook.display import ProgressLine
from nbgen.notebook.request import beside
from nbgen.notebook.row_cache import RowCache
from nbgen.notebook.rows import Column, Rows, Template
from nbgen.notebook.schema import Schema
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import takes_sampling

CONCURRENCY = 128


@takes_sampling()
@short_traceback
def map(
    data: Iterable[Any],
    prompt: Template = "{{value}}",
    *,
    schema: Any = None,
    complete: bool = False,
    system: str | None = None,
    images: Column = None,
    audio: Column = None,
    videos: Column = None,
    adapter: str = "",
    logit_processor: Any = None,
    concurrency: int = CONCURRENCY,
    cache: str | Path | None = None,
    resume: Any = None,
    progress: bool = True,
    **options: Any,
) -> Any:
    """Ask the same of every row; a pandas DataFrame with the answers, in the order and with the index of `data`.

    `prompt` is a template, `{{value}}` for an item of a list or a Series, `{{column}}` or `{{row["a column"]}}` for a
    DataFrame, or a function of the item or row. A template has something of the row in it, unless an image or the like
    goes with it: `images`, `audio` and `videos` are columns with each row's image or images, sound or sounds, video or
    videos, as `nbgen.generate` takes them ("value" of a list or a Series), or functions. With a `schema` its fields
    become columns. Further columns: text, finish_reason, prompt_tokens, completion_tokens, cached_tokens, ttft_s,
    error. A row that fails says why in `error` and leaves the others alone.
    Ctrl-C stops all and returns what is done; `resume=` takes such a DataFrame, and `cache=` the name of a file, to do
    only the rest the next time. `concurrency` requests are in flight at once.
    Options are those of `nbgen.generate`. Raises InvalidRequest for options that no row can have.
    """
    media = {"images": images, "audio": audio, "videos": videos}
    work = Rows(data, prompt, None if schema is None else Schema(schema), media)
    work.prepare(complete=complete, system=system, options=options)
    if resume is not None:
        work.take(resume)
    workers = max(1, min(_count(concurrency), len(work.results)))
    extras = beside(adapter, logit_processor)
    client = session.default_client()
    kept = RowCache(cache, str(client.hello()["model"]["name"]), extras) if cache is not None else None
    batch = Batch(client, workers, extras)
    try:
        _run(work, batch, kept, progress)
    finally:
        if kept is not None:
            kept.close()
    return work.to_df()


def _count(concurrency: Any) -> int:
    try:
        return operator.index(concurrency)
    except TypeError:
        raise InvalidRequest(f"concurrency is a whole number, got {concurrency!r}", field="concurrency") from None


def _run(work: Rows, batch: Batch, kept: RowCache | None, progress: bool) -> None:
    """Do what is open, with a line that says how far it is and goes when all is done."""
    keys = {number: kept.key(result) for number, result in enumerate(work.results)} if kept else {}
    rows = [(number, result) for number, result in work.open() if not (kept and kept.fill(keys[number], result))]
    line = ProgressLine() if progress and rows else None
    started = time.monotonic()

    def ended(number: int) -> None:
        if kept is not None and number in batch.results:
            kept.keep(keys[number], batch.results[number])

    def tick() -> None:
        if line is not None:
            line.show(*_progress(work, len(rows), batch, time.monotonic() - started))

    try:
        whole = batch.run(rows, ended, tick)
    finally:
        if line is not None:
            line.clear()
    work.errors |= batch.errors
    if kept is not None and kept.failure is not None:
        print(f"The cache takes no more rows, which only this result has: {kept.failure}")
    if not whole:
        left = len(rows) - len(batch.results) - len(batch.errors)
        print(f"Stopped with {left} of {len(work.results)} rows to do: pass this result as resume= to do the rest.")


def _progress(work: Rows, asked: int, batch: Batch, seconds: float) -> tuple[str, float]:
    """How far the rows are after so many seconds, in words and as a fraction."""
    total, now = len(work.results), len(batch.results) + len(batch.errors)
    done, failed = total - asked + now, len(work.errors) + len(batch.errors)
    left = timedelta(seconds=round(seconds * (asked - now) / now)) if now else None
    parts = [
        f"{done} of {total} rows",
        f"{failed} failed" if failed else None,
        f"{batch.tokens / max(seconds, 1e-9):.0f} tokens/s",
        f"{left} left" if left else None,
    ]
    return " · ".join(part for part in parts if part), done / total
