"""`nbgen.map`: a prompt for every row of a list, a Series or a DataFrame, and a DataFrame of the answers.

Knows rows, templates and tables; how prompts reach the server is the batch's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidAnswer, InvalidRequest, NbgenError
from nbgen.notebook import session
from nbgen.notebook.batch import Batch
from nbgen.notebook.media import media_parts
from nbgen.notebook.request import Prompt, run_body
from nbgen.notebook.result import Result
from nbgen.notebook.row_cache import RowCache
from nbgen.notebook.schema import Schema
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.table import plain
from nbgen.notebook.template import fill

CONCURRENCY = 128
DONE = ("stop", "length")
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")

Template = str | Callable[[Any], Prompt]
#: A column with images, sounds or videos, or a function of the row.
Column = str | Callable[[Any], Any] | None


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
    concurrency: int = CONCURRENCY,
    cache: str | Path | None = None,
    resume: Any = None,
    progress: bool = True,
    **options: Any,
) -> Any:
    """Ask the same of every row; a pandas DataFrame with the answers, in the order and with the index of `data`.

    `prompt` is a template, `{{value}}` for an item of a list or a Series, `{{column}}` or `{{row["a column"]}}` for a
    DataFrame, or a function of the item or row. `images`, `audio` and `videos` are columns with each row's image or
    images, sound or sounds, video or videos, as `nbgen.generate` takes them ("value" of a list or a Series), or
    functions. With a `schema` its fields become columns. Further columns: text, finish_reason, prompt_tokens,
    completion_tokens, cached_tokens, ttft_s, error. A row that fails says why in `error` and leaves the others alone.
    Ctrl-C stops all and returns what is done; `resume=` takes such a DataFrame, and `cache=` the name of a file, to do
    only the rest the next time. `concurrency` requests are in flight at once.
    Options are those of `nbgen.generate`. Raises InvalidRequest for options that no row can have.
    """
    media = {"images": images, "audio": audio, "videos": videos}
    work = Rows(data, prompt, None if schema is None else Schema(schema), media)
    work.prepare(complete=complete, system=system, options=options)
    if resume is not None:
        work.take(resume)
    client = session.default_client()
    kept = RowCache(cache, str(client.hello()["model"]["name"])) if cache is not None else None
    batch = Batch(client, max(1, min(concurrency, len(work.results))))
    try:
        _run(work, batch, kept, progress)
    finally:
        if kept is not None:
            kept.close()
    return work.to_df()


class Rows:
    """The rows of a map: what each asks, and what came of it."""

    def __init__(
        self, data: Iterable[Any], prompt: Template, schema: Schema | None, media: Mapping[str, Column]
    ) -> None:
        self._media = media
        self.index, self._names = _rows(data)
        self._prompt = prompt
        self._schema = schema
        self.results: list[Result] = []
        self.errors: dict[int, str] = {}

    def prepare(self, *, complete: bool, system: str | None, options: Mapping[str, Any]) -> None:
        """Write every prompt. Options are checked first, for they are the same for all rows."""
        if self._schema is not None:
            options = {**options, "json_schema": self._schema.json}
        run_body("-", complete=complete, system=system, options=options)
        for number, names in enumerate(self._names):
            result = Result(schema=self._schema)
            try:
                media = media_parts(**{name: self._medium(name, names) for name in self._media})
                body = run_body(self._asked(names), complete=complete, system=system, media=media, options=options)
                result.messages, result.prompt = body.get("messages"), body.get("prompt")
                result.media = body.get("media", [])
                result.params = body["params"]
            except InvalidRequest as error:
                self.errors[number] = str(error)
            self.results.append(result)

    def take(self, earlier: Any) -> None:
        """The rows that an earlier result has whole, found by their index."""
        if not (earlier.index.is_unique and self.index.is_unique):
            raise InvalidRequest("resume needs an index whose labels are unique", field="resume")
        places = {label: place for place, label in enumerate(self.index)}
        for label, row in earlier[earlier["finish_reason"].isin(DONE)].iterrows():
            if label in places:
                result = self.results[places[label]]
                result.text, result.finish_reason, result.ttft_s = row["text"], row["finish_reason"], row["ttft_s"]
                result.usage = {name: int(row[name]) for name in COUNTS if row[name] == row[name]}

    def open(self) -> list[tuple[int, Result]]:
        """The rows that are still to be asked."""
        return [
            (number, result)
            for number, result in enumerate(self.results)
            if result.finish_reason not in DONE and number not in self.errors
        ]

    def to_df(self) -> Any:
        import pandas

        rows = [self._row(number, result) for number, result in enumerate(self.results)]
        last = [*Result().row(), "error"]
        fields = dict.fromkeys(name for row in rows for name in row if name not in last)
        frame = pandas.DataFrame(rows, index=self.index, columns=[*fields, *last])
        return frame.astype(dict.fromkeys(COUNTS, "Int64"))

    def _row(self, number: int, result: Result) -> dict[str, Any]:
        row, error = result.row(), self.errors.get(number)
        fields: dict[str, Any] = {}
        if self._schema is not None and result.finish_reason:
            try:
                fields = _fields(result.value)
            except InvalidAnswer as failure:
                error = error or str(failure)
        row["text"] = row["text"] if row["text"] or result.finish_reason in DONE else None
        fields = {f"value_{name}" if name in row else name: value for name, value in fields.items()}
        return {**fields, **row, "error": error}

    def _medium(self, name: str, names: dict[str, Any]) -> Any:
        column = self._media[name]
        if column is None:
            return None
        if callable(column):
            given = column(names.get("row", names.get("value")))
        elif column in names:
            given = names[column]
        else:
            raise InvalidRequest(f"{name}: there is no column {column!r}", field=name)
        return None if isinstance(given, float) and given != given else given  # pandas' "nothing"

    def _asked(self, names: dict[str, Any]) -> Prompt:
        if isinstance(self._prompt, str):
            return fill(self._prompt, names)
        return self._prompt(names.get("row", names.get("value")))


def _run(work: Rows, batch: Batch, kept: RowCache | None, progress: bool) -> None:
    """Do what is open, with a bar."""
    from tqdm.auto import tqdm

    keys = {number: kept.key(result) for number, result in enumerate(work.results)} if kept else {}
    rows = [(number, result) for number, result in work.open() if not (kept and kept.fill(keys[number], result))]
    started = time.monotonic()

    def ended(number: int) -> None:
        if kept is not None and number in batch.results:
            kept.keep(keys[number], batch.results[number])

    with tqdm(total=len(work.results), disable=not progress, unit="row") as bar:
        bar.update(len(work.results) - len(rows))

        def tick() -> None:
            bar.update(len(work.results) - len(rows) + len(batch.results) + len(batch.errors) - bar.n)
            rate = batch.tokens / max(time.monotonic() - started, 1e-9)
            failed = len(work.errors) + len(batch.errors)
            bar.set_postfix_str(f"{rate:.0f} tokens/s" + (f", {failed} failed" if failed else ""))

        whole = batch.run(rows, ended, tick)
        tick()
    work.errors |= batch.errors
    if not whole:
        left = len(rows) - len(batch.results) - len(batch.errors)
        print(f"Stopped with {left} of {len(work.results)} rows to do: pass this result as resume= to do the rest.")


def _rows(data: Iterable[Any]) -> tuple[Any, list[dict[str, Any]]]:
    """The index, and for each row the names that its prompt may use."""
    try:
        import pandas
    except ImportError:
        raise NbgenError("nbgen.map returns a pandas DataFrame: pip install pandas") from None
    if isinstance(data, str | bytes):
        raise InvalidRequest("nbgen.map takes a list, a Series or a DataFrame; for one text there is nbgen.generate")
    if isinstance(data, pandas.DataFrame):
        rows = [row for _, row in data.iterrows()]
        return data.index, [{**{str(name): row[name] for name in data.columns}, "row": row} for row in rows]
    if isinstance(data, Mapping):
        data = pandas.Series(data)
    values = list(data)
    index = data.index if isinstance(data, pandas.Series) else pandas.RangeIndex(len(values))
    return index, [{"value": value} for value in values]


def _fields(value: Any) -> dict[str, Any]:
    """The columns of a typed value: an object's fields, anything else in one column."""
    simple = plain(value)
    return dict(simple) if isinstance(simple, Mapping) else {"value": simple}
