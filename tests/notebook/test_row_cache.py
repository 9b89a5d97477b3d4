"""Rows in a file: what is the same row, and what a file may have gone through."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbgen.notebook.result import Result
from nbgen.notebook.row_cache import RowCache


def asked(prompt: str | None = "a", **fields: Any) -> Result:
    return Result(prompt=prompt, **fields)


def answered(text: str, reason: str = "stop") -> Result:
    return Result(
        text=text,
        reasoning="so",
        finish_reason=reason,
        usage={"completion_tokens": 1},
        ttft_s=0.5,
        tokens_per_s=2.0,
        model="m",
    )


_open: list[RowCache] = []


def opened(path: Path, model: str = "m", **extras: str) -> RowCache:
    _open.append(RowCache(path, model, extras))
    return _open[-1]


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "rows.jsonl"


@pytest.mark.parametrize(
    "other",
    [
        asked("b"),
        asked(params={"temperature": 0}),
        asked(media=[{"type": "image_url"}]),
        asked(None, messages=[{"role": "user", "content": "a"}]),
    ],
)
def test_a_row_that_asks_something_else_is_another(path: Path, other: Result) -> None:
    assert opened(path).key(asked()) != opened(path).key(other)


def test_rows_of_other_messages_are_others(path: Path) -> None:
    talks = ([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}], None)
    assert len({opened(path).key(asked(None, messages=talk)) for talk in talks}) == 3


def test_a_row_of_another_adapter_is_another_and_repeats_are_counted(path: Path) -> None:
    keys = [cache.key(asked()) for cache in (opened(path), opened(path, adapter="poet"))]
    assert len(set(keys)) == 2
    cache = opened(path)
    assert cache.key(asked()) == keys[0]
    assert cache.key(asked()) not in keys
    params = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert len({opened(path).key(asked(params=given)) for given in params}) == 1


def test_an_answer_is_of_the_model_that_gave_it(path: Path) -> None:
    cache = opened(path, "m")
    cache.keep("k", answered("m's"))
    other = answered("n's")
    other.identity = "n"
    cache.keep("k", other)
    cache.close()
    again = opened(path)
    for model in "mn":
        again.fill("k", model, found := asked())
        assert found.text == f"{model}'s"
    assert not again.knows("k", "o")


TEXTS = ["", "plain", "line\nline", "\u2028\u2029\x85\x0b\x1c", "😀 \ud83d", "\\u2028"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_kept_is_found_again(path: Path, text: str) -> None:
    cache = opened(path)
    cache.keep("k", answered(text))
    cache.keep("l", answered("next"))
    cache.close()
    again = opened(path)
    found = asked("b")
    again.fill("k", "m", found)
    assert found == Result(**{**vars(answered(text)), "prompt": "b"})
    assert [again.knows(key, "m") for key in "klm"] == [True, True, False]


@pytest.mark.parametrize("end", [b'{"key": "cut', b'{"key": "cut", "text": "\xf0\x9f', b"5", b"[]", b"{}", b"\x00"])
def test_a_file_that_was_cut_off_goes_on(path: Path, end: bytes) -> None:
    cache = opened(path)
    cache.keep("k", answered("first"))
    cache.close()
    path.write_bytes(path.read_bytes() + end)
    for key in ("l", "m"):
        cache = opened(path)
        assert cache.knows("k", "m")
        cache.keep(key, answered(key))
        cache.close()
    last = opened(path)
    assert [last.knows(key, "m") for key in "klm"] == [True] * 3


def test_an_answer_that_was_broken_off_is_not_kept(path: Path) -> None:
    cache = opened(path)
    for key, reason in (("s", "stop"), ("l", "length"), ("a", "abort"), ("e", "error")):
        cache.keep(key, answered("half", reason))
    cache.close()
    assert [json.loads(line)["key"][-2:] for line in path.read_text().splitlines()] == ["-s", "-l"]
    path.write_text(path.read_text().replace('"length"', '"abort"'))
    assert [opened(path).knows(key, "m") for key in "sl"] == [True, False]
