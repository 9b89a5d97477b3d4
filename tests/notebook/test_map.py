"""A prompt for every row: order, index, errors by the row, stopping, going on."""

import gc
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import psutil
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import display
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import AnyClient

OPTIONS = {"temperature": 0, "max_new_tokens": 3, "progress": False}


def test_answers_keep_the_order_and_the_index(connected: PrivateServer) -> None:
    words = pd.Series(["one", "two", "three"] * 30, index=[f"r{i}" for i in range(90)])
    answers = nbgen.map(words, "count {{value}}", **OPTIONS)
    assert list(answers.index) == list(words.index)
    assert answers.error.isna().all()
    assert answers.completion_tokens.tolist() == [3] * 90
    alone = nbgen.generate("count two", temperature=0, max_new_tokens=3)
    assert answers.loc["r1", "text"] == alone.text
    assert answers.loc["r1", "prompt_tokens"] == alone.usage["prompt_tokens"]
    assert answers.text.nunique() <= 3


def test_rows_of_a_frame_name_their_columns(connected: PrivateServer) -> None:
    frame = pd.DataFrame({"city": ["Oslo", "Rome"], "a year": [1900, 2000]})
    answers = nbgen.map(frame, '{{city}} in {{row["a year"]}}', **OPTIONS)
    assert answers.index.equals(frame.index)
    expected = nbgen.generate("Rome in 2000", temperature=0, max_new_tokens=3).text
    assert answers.text.tolist()[1] == expected
    by_function = nbgen.map(frame, lambda row: f"{row.city} in {row['a year']}", **OPTIONS)
    assert by_function.text.tolist() == answers.text.tolist()
    assert nbgen.map(["Rome in 2000"], **OPTIONS).text.tolist() == [expected]


class PolarsFrame:
    """As polars' DataFrame is read: by its columns where it is iterated over, by `iter_rows` else."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self._columns.values())

    def iter_rows(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self._columns.values(), strict=True)


def test_a_frame_of_polars_is_one_of_rows(connected: PrivateServer) -> None:
    cities = {"city": ["Oslo", "Rome", "Bern"], "year": [1900, 2000, 2100]}
    answers = nbgen.map(PolarsFrame(**cities), "{{city}} in {{row.year}}", **OPTIONS)
    expected = nbgen.map(pd.DataFrame(cities), "{{city}} in {{row.year}}", **OPTIONS)
    assert answers.text.tolist() == expected.text.tolist()
    assert answers.index.equals(expected.index)


def test_values_of_a_row_keep_the_types_of_their_columns(connected: PrivateServer) -> None:
    frame = pd.DataFrame({"id": [1, 2**53 + 1], "score": [0.5, 0.7]}, index=["a", "b"])
    asked: list[str] = []
    nbgen.map(frame, lambda row: asked.append(f"{row.id} {row['score']}") or "x", **OPTIONS)
    assert asked == ["1 0.5", "9007199254740993 0.7"]
    answers = nbgen.map(frame, "{{id}} {{row.id}}", **OPTIONS)
    expected = nbgen.map(["1 1", "9007199254740993 9007199254740993"], **OPTIONS)
    assert answers.prompt_tokens.tolist() == expected.prompt_tokens.tolist()
    assert answers.text.tolist() == expected.text.tolist()


def test_a_row_that_fails_leaves_the_others_alone(connected: PrivateServer) -> None:
    answers = nbgen.map(["a", "x" * 20_000, " ", "b"], "{{value}}", **OPTIONS)
    assert answers.error.notna().tolist() == [False, True, True, False]
    assert "16384" in answers.error[1]
    assert answers.finish_reason[1:3].tolist() == ["error", "error"]
    assert "empty" in answers.error[2]
    assert answers.text.isna().tolist() == [False, True, True, False]


def test_whatever_is_wrong_with_a_row_leaves_the_others_alone(connected: PrivateServer) -> None:
    def prompt(row: int) -> Any:
        return ("a", None, 5, "\ud800")[row]

    answers = nbgen.map([0, 1, 2, 3, 4], prompt, **OPTIONS)
    assert answers.error.notna().tolist() == [False, True, True, True, True]
    assert "surrogate" in answers.error[3]
    assert answers.error[4] == "IndexError: tuple index out of range"
    assert answers.text.isna().tolist() == [False, True, True, True, True]


def test_a_class_that_refuses_an_answer_leaves_the_others_alone(connected: PrivateServer) -> None:
    @dataclass
    class Picky:
        error: Literal["yes"]
        text: Literal["no"]

        def __post_init__(self) -> None:
            refused.append(self)
            if len(refused) == 1:
                raise LookupError("the first one")

    refused: list[Picky] = []
    rows = nbgen.map(["a", "b"], schema=Picky, progress=False, max_new_tokens=100)
    assert rows.error[0] == "LookupError: the first one"
    assert rows.error.isna().tolist() == [False, True]
    assert rows.value_error.tolist()[1:] == ["yes"]
    assert rows.value_text.tolist()[1:] == ["no"]
    assert rows.text.str.contains("yes").all()


def test_a_value_that_is_missing_is_not_asked_for(connected: PrivateServer) -> None:
    cities, left = ["Oslo", float("nan"), "Rome", "Bonn"], [1, pd.NA, 1, 1]
    frame = pd.DataFrame({"city": cities, "year": [1.0, 2, None, 4], "left": left})
    answers = nbgen.map(frame, "{{city}} {{year}} {{left}}", **OPTIONS)
    assert answers.error[1:2].tolist() == ["city is missing"]
    assert answers.error[2:3].tolist() == ["year is missing"]
    assert answers.error.isna().tolist() == answers.text.notna().tolist() == [True, False, False, True]
    assert nbgen.map(["a", None, float("nan"), pd.NaT], **OPTIONS).error.tolist()[1:] == ["value is missing"] * 3
    assert nbgen.map(frame, "{{city if city == city else 'nowhere'}}", **OPTIONS).error.isna().all()


def test_a_name_that_is_no_column_is_refused_at_once(connected: PrivateServer) -> None:
    frame = pd.DataFrame({"city": ["Oslo"], "a year": [1900]})
    with pytest.raises(InvalidRequest, match=r"'town' is not defined.* columns city, a year"):
        nbgen.map(frame, "{{town}}", **OPTIONS)
    with pytest.raises(InvalidRequest, match=r"'input' is not defined.* columns city, a year"):
        nbgen.map(frame, "{{input}}", **OPTIONS)
    with pytest.raises(InvalidRequest, match=r"no column 'photo'.* columns city, a year"):
        nbgen.map(frame, "{{city}}", images="photo", **OPTIONS)
    with pytest.raises(InvalidRequest, match="only value"):
        nbgen.map(["a"], "{{text}}", **OPTIONS)


def test_the_line_of_progress_is_gone_when_all_is_done(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**OPTIONS, "progress": True}
    nbgen.map(["a", "b"], **options)
    first, last = capsys.readouterr().err.splitlines()
    assert (first, last[:11], last[-4:]) == ("0 of 2 rows · 0 tokens/s · 0%", "2 of 2 rows", "100%")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    nbgen.map(["a", "b"], **options)
    *lines, last, empty = capsys.readouterr().err.split("\r")
    assert all("of 2 rows" in line for line in lines[1:])
    assert (last.strip(), empty) == ("", "")
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    with capture_output() as shown:
        nbgen.map(["a", "b"], **options)
    assert {tuple(output.data) for output in shown.outputs} == {("text/plain", "text/html")}
    assert "of 2 rows" in shown.outputs[0].data["text/plain"]
    assert shown.outputs[-1].data == {"text/plain": "", "text/html": ""}
    assert shown.outputs[-1].update
    with capture_output() as shown:
        nbgen.map([], **options)
    assert shown.outputs == []


def test_a_row_is_let_go_with_its_image_when_it_ends(connected: PrivateServer) -> None:
    """Else hundreds of large ones are in memory until the last has an answer."""
    most = 0
    taken = np.zeros((400, 400, 3), np.uint8)
    taken[:] = np.random.default_rng(0).integers(0, 255, taken.shape)

    def image(row: int) -> np.ndarray:
        nonlocal most
        most = max(most, tracemalloc.get_traced_memory()[0])
        return taken

    tracemalloc.start()
    gc.disable()
    try:
        answers = nbgen.map(list(range(40)), images=image, concurrency=2, **OPTIONS)
    finally:
        gc.enable()
        tracemalloc.stop()
    assert "takes no image" in answers.error[0]
    assert most < 20 * taken.nbytes


def test_what_no_row_can_have_is_refused_at_once(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        nbgen.map(["a"], temprature=0)
    with pytest.raises(InvalidRequest, match=r"nbgen\.generate"):
        nbgen.map("a text")
    with pytest.raises(InvalidRequest, match="got int"):
        nbgen.map(5)
    with pytest.raises(InvalidRequest, match="concurrency is a whole number"):
        nbgen.map(["a"], concurrency="5", **OPTIONS)
    with pytest.raises(InvalidRequest, match="no column finish_reason, ttft_s"):
        nbgen.map(["a"], resume=pd.DataFrame({"text": ["a"]}), **OPTIONS)


def test_a_cache_file_answers_what_was_asked_before(
    connected: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / "folder" / "rows.jsonl"
    first = nbgen.map(["a", "b", "a"], cache="~/folder/rows.jsonl", **OPTIONS)
    kept = [
        {**json.loads(line), "text": f"kept {number}"} for number, line in enumerate(cache.read_text().splitlines())
    ]
    cache.write_text("".join(json.dumps(row) + "\n" for row in kept) + '{"key": "cut')
    again = nbgen.map(["a", "b", "a"], cache=cache, **OPTIONS)
    assert sorted(again.text) == ["kept 0", "kept 1", "kept 2"]
    assert again.drop(columns="text").equals(first.drop(columns="text"))
    other = nbgen.map(["a"], cache=cache, **{**OPTIONS, "max_new_tokens": 2})
    assert other.completion_tokens.tolist() == [2]


def test_many_rows_in_flight_cost_no_more_than_a_few(connected: PrivateServer) -> None:
    def cpu_seconds(concurrency: int) -> float:
        started = time.process_time()
        nbgen.map([f"row {i}" for i in range(128)], concurrency=concurrency, **{**OPTIONS, "max_new_tokens": 1})
        return time.process_time() - started

    few, many = (min(cpu_seconds(concurrency) for _ in range(3)) for concurrency in (16, 128))
    assert many < 3 * few


def test_adapters_and_logit_processors_are_as_in_generate(connected: PrivateServer, tmp_path: Path) -> None:
    only_b = {"name": "allowed_tokens", "args": {"token_ids": nbgen.tokenize("b")}}
    cache = tmp_path / "rows.jsonl"
    free = nbgen.map(["a"], cache=cache, **OPTIONS).text[0]
    assert nbgen.map(["a"], cache=cache, logit_processor=only_b, **OPTIONS).text[0] == "bbb" != free
    assert "poet" in nbgen.map(["a"], adapter="poet", **OPTIONS).error[0]
    with pytest.raises(InvalidRequest, match="logit_processor"):
        nbgen.map(["a"], logit_processor=5)


def test_variables_of_the_template_are_as_in_generate(calling_client: AnyClient, tmp_path: Path) -> None:
    cache = tmp_path / "rows.jsonl"
    tokens = [
        nbgen.map(["hi"], template_options=options, cache=cache, **OPTIONS).prompt_tokens[0]
        for options in (None, {}, {"thinks": True})
    ]
    assert tokens[0] == tokens[1] == tokens[2] - len("<think>\n")
    with pytest.raises(InvalidRequest, match="template_options are a dict"):
        nbgen.map(["hi"], template_options=True)


def test_a_map_works_inside_a_running_event_loop(connected: PrivateServer) -> None:
    import asyncio

    async def inside() -> int:
        return len(nbgen.map(["a", "b"], **OPTIONS))

    assert asyncio.run(inside()) == 2


def test_rows_that_a_crash_of_the_engine_broke_off_are_asked_again(connected: PrivateServer, tmp_path: Path) -> None:
    long = {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True, "complete": True, "progress": False}
    cache = tmp_path / "rows.jsonl"
    expected = nbgen.generate("one", **{name: value for name, value in long.items() if name != "progress"}).text
    engine = psutil.Process(nbgen.status().raw["engine_pid"])

    def crash() -> None:
        """While most rows are still to come."""
        while not cache.exists() or not cache.read_text():
            time.sleep(0.02)
        engine.kill()

    threading.Thread(target=crash, daemon=True).start()
    rows = nbgen.map(["one"] * 10, concurrency=2, cache=cache, **long)
    assert not engine.is_running()
    assert rows.error.tolist() == [None] * 10
    assert rows.text.tolist() == [expected] * 10
    assert rows.completion_tokens.tolist() == [300] * 10
