"""`nbgen.map`: a prompt for every row of a list, a Series or a DataFrame, and a DataFrame of the answers.

`Rows` makes the prompts, `Batch` sends them to the server.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.batch import Batch
from nbgen.notebook.interrupts import Interrupts
from nbgen.notebook.job import Job
from nbgen.notebook.request import beside
from nbgen.notebook.row_cache import RowCache
from nbgen.notebook.rows import Column, Rows, Template
from nbgen.notebook.schema import Schema
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import takes_sampling
from nbgen.notebook.tools import chat_body

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
    template_options: Mapping[str, Any] | None = None,
    logit_processor: Any = None,
    concurrency: int = CONCURRENCY,
    cache: str | Path | None = None,
    resume: Any = None,
    progress: bool = True,
    **options: Any,
) -> Any:
    """Ask the same about every row; a pandas DataFrame with the answers, in the order and with the index of `data`.

    `data` is a list, a Series or a DataFrame, or a table of polars or pyarrow.

    `prompt` is a function of the item or row, or a template: `{{value}}` is an item of a list or a Series, `{{column}}`
    or `{{row["a column"]}}` a column of a DataFrame, or a level of its index that has a name. A template must use
    something of the row, unless rows have media: `images`, `audio` and `videos` name columns ("value" for a list or a
    Series) with values that `nbgen.generate` takes for the same option, or are functions of the row.

    Columns of the result are the fields of the `schema`, if there is one, text, reasoning (where the model marked its
    thoughts), finish_reason, prompt_tokens, completion_tokens, cached_tokens, ttft_s and error. A row that fails has
    the reason in `error`, and the others go on; a line at the end counts the failures. With a `sampling_seed` rows that
    ask the same have the same answer.

    Ctrl-C stops all and returns what is done. That is no error: cells that wait for their turn, as in "Run All", then
    run with an incomplete table. To do only the rest the next time, give that DataFrame as `resume=`, or the name of a
    file as `cache=`, which is made with its folders. One model answers all rows: if it is unloaded or replaced
    meanwhile, that stops all too, and `error` of the rest says so. The file keeps the answers of each model apart, by
    its files and how they are read (for servers of other kinds, by its name alone), and none of a model in training.

    `concurrency` requests are in flight at once, and a few more rows are read ahead. Options are those of
    `nbgen.generate` except tools. Raises InvalidRequest for options that no row can have, and where the first row
    shows the prompt to be wrong for all.
    """
    media = {"images": images, "audio": audio, "videos": videos}
    work = Rows(data, prompt, None if schema is None else Schema(schema), media)
    work.take(resume)
    work.prepare(complete=complete, system=system, options=options)
    workers = max(1, min(_count(concurrency), len(work.results)))
    extras = beside(adapter, logit_processor) | chat_body((), template_options=template_options)
    file = None if cache is None else _file(cache)
    client = session.default_client()
    model = client.hello()["model"]
    kept = None if file is None else RowCache(file, _identity(model, adapter), extras)
    batch = Batch(client, workers, extras | {name: model[name] for name in ("changes",) if name in model})
    with Interrupts() as interrupts, nullcontext() if kept is None else closing(kept):
        Job(work, batch, kept).run(progress, over=interrupts.ignore)
        answers = work.to_df()
    if not batch.change:
        _tell_failures(answers)
    return answers


def _count(concurrency: Any) -> int:
    try:
        count = operator.index(concurrency)
    except TypeError:
        count = 0
    if count < 1:
        raise InvalidRequest(f"concurrency is a whole number from 1, got {concurrency!r}", field="concurrency")
    return count


def _file(cache: Any) -> Path:
    if not isinstance(cache, str | PathLike):
        raise InvalidRequest(f"cache is the name of a file, got {cache!r:.80}", field="cache")
    return Path(os.path.expanduser(cache))  # Path's own raises for some names


def _identity(model: Mapping[str, Any], adapter: str) -> str:
    """The identity of the server's model with this adapter, or only its name. Raises InvalidRequest for a live one."""
    if model.get("identity") == "":
        raise InvalidRequest(
            f"cache: {model['name']!r} is trained here, and no answer of before is one of its present weights; "
            "resume= takes an earlier result",
            field="cache",
        )
    known = model.get("adapters", {}).get(adapter) if adapter else model.get("identity")
    return str(known or model["name"])


def _tell_failures(answers: Any) -> None:
    """Print how many rows failed, since a reader may not look for it in the table."""
    if len(failed := answers["error"].dropna()):
        print(f"{len(failed)} of {len(answers)} rows failed: {failed.iloc[0]:.300}")
