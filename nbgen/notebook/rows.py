"""The rows of a map: the prompt for each row of a list, a Series or a DataFrame, and the DataFrame of the answers.

Knows data, templates and tables; nothing of servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import iscoroutinefunction
from itertools import islice
from typing import Any

from nbgen.errors import InvalidRequest, in_words
from nbgen.notebook.media import media_parts
from nbgen.notebook.request import Prompt, asked, one_answer, run_body
from nbgen.notebook.result import Result
from nbgen.notebook.row_data import RowData
from nbgen.notebook.schema import Schema
from nbgen.notebook.table import plain
from nbgen.notebook.template import UnknownName, WrongExpression, check_names, filled, missing, parsed

DONE = ("stop", "length")
COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens")

Template = str | Callable[[Any], Prompt]
#: A column with images, sounds or videos, or a function of the row.
Column = str | Callable[[Any], Any] | None


class Rows:
    """The rows of a map: the prompt and the result of each."""

    def __init__(
        self, data: Iterable[Any], prompt: Template, schema: Schema | None, media: Mapping[str, Column]
    ) -> None:
        self._media = media
        self._data = RowData.of(data)
        self.index = self._data.index
        self._prompt = prompt
        self._schema = schema
        self.results = [Result(schema=schema) for _ in range(len(self._data))]

    def prepare(self, *, complete: bool, system: str | None, options: Mapping[str, Any]) -> None:
        """Check what is the same for all rows, and make the prompt of the first open row."""
        if not (isinstance(self._prompt, str) or callable(self._prompt)):
            words = f"prompt is a template or a function of the row, got {type(self._prompt).__name__}"
            raise InvalidRequest(words, field="prompt")
        if iscoroutinefunction(self._prompt):
            words = "prompt is a coroutine function, which nobody awaits here: write it without async"
            raise InvalidRequest(words, field="prompt")
        if self._schema is not None:
            options = {**options, "json_schema": self._schema.json}
        self._params = one_answer(run_body("-", complete=complete, system=system, options=options)["params"])
        self._turns = partial(asked, complete=complete, system=system)
        if not self.results:
            return
        names = self._data.names(0)
        self._check_media(names)
        try:
            self._check_template(names)
            for number, _ in islice(self.open(), 1):
                self.write(number, refused=UnknownName)
        except WrongExpression as error:
            raise InvalidRequest(
                f"{error} {self._data.remedy(error.source) or _listed(names)}", field="prompt"
            ) from None

    def write(self, number: int, refused: type[Exception] | tuple[()] = ()) -> bool:
        """Put a row's prompt into its result. False if that fails: `error` says why. Raises what is `refused`."""
        result = self.results[number]
        if not result.error and result.prompt is None and result.messages is None:
            try:
                question = self._question(number)
                result.messages, result.prompt = question.get("messages"), question.get("prompt")
                result.media, result.params = question.get("media", []), self._params
            except refused:
                raise
            except Exception as error:  # A row, or a function of the user's, may be wrong in any way.
                result.error = in_words(error)
        return not result.error

    def question(self, number: int) -> Result:
        """A row's prompt as a Result without an answer, also where the row has one. Raises what is wrong with it."""
        return Result(**self._question(number), params=self._params)

    def take(self, earlier: Any) -> None:
        """Take over the answers that an earlier result, if any, has whole; rows are matched by their index's labels."""
        import pandas

        if earlier is None:
            return
        if not isinstance(earlier, pandas.DataFrame):
            words = f"resume is the pandas DataFrame that nbgen.map returned, got {type(earlier)}"
            raise InvalidRequest(words, field="resume")
        needed = ("text", "finish_reason", "ttft_s", *COUNTS)
        if absent := [name for name in needed if name not in earlier.columns]:
            raise InvalidRequest(
                f"resume is what nbgen.map returned; this has no column {', '.join(absent)}", field="resume"
            )
        if not (earlier.index.is_unique and self.index.is_unique):
            raise InvalidRequest("resume needs an index whose labels are unique", field="resume")
        thoughts = self._tells_thoughts(earlier)
        done = earlier[earlier["finish_reason"].isin(DONE)]
        places = self.index.get_indexer_for(done.index)  # which also finds a label that is NaN
        for place, (_, row) in zip(places, done.iterrows(), strict=True):
            if place >= 0:
                result = self.results[place]
                result.text = "" if missing(row["text"]) else row["text"]
                result.reasoning = "" if not thoughts or missing(row["reasoning"]) else row["reasoning"]
                result.finish_reason, result.ttft_s = row["finish_reason"], row["ttft_s"]
                result.usage = {name: int(row[name]) for name in COUNTS if not missing(row[name])}

    def open(self) -> Iterator[tuple[int, Result]]:
        """The rows that are still to be asked."""
        for number, result in enumerate(self.results):
            if result.finish_reason not in DONE and not result.error:
                yield number, result

    def to_df(self) -> Any:
        import pandas

        thoughts = any(result.reasoning for result in self.results)
        rows = [self._row(result, thoughts) for result in self.results]
        text, *numbers = Result().row()
        last = [text, *(["reasoning"] if thoughts else []), *numbers]
        fields = dict.fromkeys(name for row in rows for name in row if name not in last)
        if not fields and self._schema is not None:
            fields = _apart(_declared(self._schema), last)
        frame = pandas.DataFrame(rows, index=self.index, columns=[*fields, *last])
        return frame.astype(dict.fromkeys(COUNTS, "Int64"))

    def _row(self, result: Result, thoughts: bool) -> dict[str, Any]:
        row, error = result.row(), result.error
        fields: dict[str, Any] = {}
        if self._schema is not None and result.finish_reason:
            try:
                fields = _fields(result.value)
            except Exception as failure:  # A class that is given as the schema may raise anything, too.
                error = error or in_words(failure)
        row["text"] = row["text"] if row["text"] or result.finish_reason in DONE else None
        row["finish_reason"] = row["finish_reason"] or (error and "error")
        row |= {"reasoning": result.reasoning or None} if thoughts else {}
        row["error"] = error
        return {**_apart(fields, row), **row}

    def _tells_thoughts(self, earlier: Any) -> bool:
        """Whether a table's column `reasoning` holds what models thought, and not a field of the schema."""
        own = self._schema is not None and '"reasoning"' in self._schema.json
        return "reasoning" in earlier.columns and (not own or "value_reasoning" in earlier.columns)

    def _check_media(self, names: Mapping[str, Any]) -> None:
        for name, column in self._media.items():
            if isinstance(column, str) and column not in names:
                raise InvalidRequest(f"{name}: there is no column {column!r}. {_listed(names)}", field=name)

    def _check_template(self, names: Mapping[str, Any]) -> None:
        """Refuse a template that asks the same of every row, unless rows have media of their own."""
        if not isinstance(self._prompt, str):
            return
        self._parts = parsed(self._prompt)
        check_names(self._parts, names)
        if not all(isinstance(part, str) for part in self._parts):
            return
        single = next((name for name in names if f"{{{name}}}" in self._prompt), None)
        if single or not any(column is not None for column in self._media.values()):
            raise InvalidRequest(
                f"the prompt has nothing of the rows in it: write {{{{{single or next(iter(names))}}}}}, in two "
                "braces. A function, lambda row: …, may ask the same of all",
                field="prompt",
            )

    def _question(self, number: int) -> dict[str, Any]:
        names = self._data.names(number)
        media = media_parts(**{name: self._medium(name, names) for name in self._media})
        return self._turns(self._asked(names), media=media)

    def _medium(self, name: str, names: Mapping[str, Any]) -> Any:
        column = self._media[name]
        if column is None:
            return None
        given = names[column] if isinstance(column, str) else column(names.get("row", names.get("value")))
        return None if missing(given) else given

    def _asked(self, names: Mapping[str, Any]) -> Prompt:
        if isinstance(self._prompt, str):
            return filled(self._parts, names, whole=True)
        return self._prompt(names.get("row", names.get("value")))


def _listed(names: Mapping[str, Any]) -> str:
    """A sentence with the names that a template may use."""
    if "row" not in names:
        return "There is only value, the item."
    return f"There are row and the columns {', '.join(name for name in names if name != 'row')}."


def _apart(fields: Mapping[str, Any], taken: Iterable[str]) -> dict[str, Any]:
    """The fields of a value, renamed where another column has their name."""
    named: dict[str, Any] = {}
    for name, value in fields.items():
        column = name
        while column in taken or (column != name and column in fields):
            column = f"value_{column}"
        named[column] = value
    return named


def _declared(schema: Schema) -> dict[str, Any]:
    """The columns that a schema's values will have, as far as the schema tells."""
    told = json.loads(schema.json)
    if "properties" in told:
        return dict.fromkeys(told["properties"])
    unsaid = told.get("type") == "object" or not {"anyOf", "oneOf", "allOf", "$ref"}.isdisjoint(told)
    return {} if unsaid else {"value": None}


def _fields(value: Any) -> dict[str, Any]:
    """The columns of a typed value: an object's fields, anything else in one column."""
    simple = plain(value)
    return dict(simple) if isinstance(simple, Mapping) else {"value": simple}
