"""What nbgen.map does around its rows, with a client that answers at once: progress in words, the cache, refusals."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.batch import Batch
from nbgen.notebook.job import Job
from nbgen.notebook.result import Result
from nbgen.notebook.rows import Rows


class Echo:
    """A client whose model says what it was asked; "stop" is stopped by somebody, and "bad" is refused."""

    lost = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.together = self.most = 0

    def hello(self) -> dict[str, Any]:
        return {"model": {"name": "echo"}}

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        self.together += 1
        self.most = max(self.most, self.together)
        await asyncio.sleep(0)
        yield
        self.together -= 1

    async def arun(self, body: dict[str, Any]) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        text = body["prompt"]
        self.asked.append(text)
        if text == "bad":
            raise InvalidRequest("no")
        reason = "abort" if text == "stop" and self.asked.count(text) == 1 else "stop"
        yield "delta", {"text": text}
        yield "done", {"finish_reason": {"type": reason}, "usage": {"completion_tokens": 1}}


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Echo:
    echo = Echo()
    monkeypatch.setattr(session, "_client", echo)
    return echo


def mapped(data: Any, **options: Any) -> Any:
    return nbgen.map(data, complete=True, progress=False, **options)


def test_answers_stand_beside_their_rows(echo: Echo) -> None:
    table = mapped({"x": "a", "y": "bad", "z": "c"})
    assert table.index.tolist() == ["x", "y", "z"]
    assert table.text.isna().tolist() == [False, True, False]
    assert table.text.tolist()[::2] == ["a", "c"]
    assert table.error.tolist()[1] == "no"


def test_rows_that_were_stopped_are_asked_again_from_a_cache_and_from_a_table(echo: Echo, tmp_path: Path) -> None:
    cache = tmp_path / "rows.jsonl"
    first = mapped(["a", "stop", "bad"], cache=cache)
    assert first.finish_reason.tolist()[:2] == ["stop", "abort"]
    for options in ({"cache": cache}, {"resume": first}):
        echo.asked.clear()
        echo.asked.append("stop")
        again = mapped(["a", "stop", "bad"], **options)
        assert sorted(echo.asked[1:]) == ["bad", "stop"]
        assert again.finish_reason.tolist()[:2] == ["stop", "stop"]
        assert again.text.tolist()[:2] == ["a", "stop"]


def test_what_an_earlier_table_has_counts_among_those_that_ask_the_same(echo: Echo, tmp_path: Path) -> None:
    cache = tmp_path / "rows.jsonl"
    first = mapped(["a", "a"], cache=cache)
    lines = [
        json.loads(line) | {"text": f"kept {number}"} for number, line in enumerate(cache.read_text().splitlines())
    ]
    cache.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first.loc[1, "finish_reason"] = "abort"
    assert mapped(["a", "a"], cache=cache, resume=first).text.tolist() == ["a", "kept 1"]


def test_a_cache_is_of_one_model_and_of_what_goes_with_all_rows(echo: Echo, tmp_path: Path) -> None:
    cache = tmp_path / "rows.jsonl"
    for _ in range(2):
        mapped(["a", "a"], cache=cache)
        mapped(["a"], cache=cache, adapter="poet")
    assert echo.asked == ["a"] * 3
    echo.hello = lambda: {"model": {"name": "other"}}  # type: ignore[method-assign]
    mapped(["a"], cache=cache)
    assert echo.asked == ["a"] * 4


@pytest.mark.parametrize(("concurrency", "workers"), [(3, 3), (100, 5), (np.int64(2), 2), (True, 1)])
def test_no_more_are_in_flight_than_there_are_rows(echo: Echo, concurrency: int, workers: int) -> None:
    mapped(list("abcde"), concurrency=concurrency)
    assert echo.most == workers


@pytest.mark.parametrize("concurrency", ["5", 2.5, None, 0, -1])
def test_concurrency_is_a_whole_number(echo: Echo, concurrency: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"concurrency is a whole number from 1, got {concurrency!r}"):
        mapped(["a"], concurrency=concurrency)
    assert echo.asked == []


@pytest.mark.parametrize("cache", [True, 5, b"rows.jsonl", ["rows.jsonl"]])
def test_a_cache_is_the_name_of_a_file(echo: Echo, cache: Any) -> None:
    with pytest.raises(InvalidRequest, match="cache is the name of a file, got"):
        mapped(["a"], cache=cache)
    assert echo.asked == []


def test_how_many_rows_failed_and_why_is_said_when_all_is_over(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    mapped(["a", "b"])
    assert capsys.readouterr().out == ""
    mapped(["a", "bad", None])
    assert capsys.readouterr().out == "2 of 3 rows failed: no\n"
    mapped(["a"], schema={"type": "object"})
    assert capsys.readouterr().out.startswith("1 of 1 rows failed: ")


def test_no_rows_make_an_empty_table(echo: Echo) -> None:
    table = mapped([])
    assert (len(table), "text" in table, str(table.prompt_tokens.dtype)) == (0, True, "Int64")
    assert len(mapped([], resume=table)) == 0


@pytest.mark.parametrize(
    ("known", "ended", "failed", "unasked", "seconds", "words", "fraction"),
    [
        (0, 0, 0, 0, 0.0, "0 of 4 rows · 0 tokens/s", 0.0),
        (0, 1, 0, 0, 10.0, "1 of 4 rows · 1 tokens/s · 0:00:30 left", 0.25),
        (0, 1, 1, 0, 10.0, "2 of 4 rows · 1 failed · 1 tokens/s · 0:00:10 left", 0.5),
        (0, 1, 0, 2, 5.0, "3 of 4 rows · 2 failed · 2 tokens/s · 0:00:05 left", 0.75),
        (2, 1, 0, 0, 5.0, "3 of 4 rows · 2 tokens/s · 0:00:05 left", 0.75),
        (0, 4, 0, 0, 2.0, "4 of 4 rows · 20 tokens/s", 1.0),
    ],
)
def test_progress_says_how_far_the_rows_are(
    known: int, ended: int, failed: int, unasked: int, seconds: float, words: str, fraction: float
) -> None:
    work = Rows(list("abcd"), "{{value}}", None, {})
    for result in work.results[:known]:
        result.finish_reason = "stop"
    for result in work.results[known : known + unasked + failed]:
        result.error = "wrong"
    batch = Batch(Echo(), 1, {})  # type: ignore[arg-type]
    job = Job(work, batch, None)
    batch.answered, batch.failed, batch.tokens = ended, failed, 10 * ended
    assert job.progress(seconds) == (words, fraction)


def test_an_interrupt_says_how_many_rows_are_left(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(batch: Batch, asked: Iterable[tuple[int, Result]], *told: Any) -> bool:
        rows = list(asked)
        rows[0][1].text, rows[0][1].finish_reason = "a", "stop"
        rows[1][1].error = "no"
        return False

    monkeypatch.setattr(Batch, "run", run)
    table = mapped(["a", None, "c", "d", "e"])
    assert "Stopped with 2 of 5 rows to do" in capsys.readouterr().out
    assert table.error.isna().tolist() == [True, False, False, True, True]
