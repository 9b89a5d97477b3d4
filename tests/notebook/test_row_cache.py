"""Rows in a file: what is the same row, and what a file may have gone through. No row that was answered is lost."""

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from nbgen.notebook.row_cache import RowCache

OPTIONS = {"temperature": 0, "max_new_tokens": 3, "progress": False}
FULL_AT = 2**24


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


def keep(path: Path, **texts: str) -> None:
    """Keep an answer under each key."""
    cache = opened(path)
    for key, text in texts.items():
        cache.keep(key, answered(text))
    cache.close()


def known(path: Path, keys: str) -> str:
    """Those of the keys that the file has an answer for."""
    cache = opened(path)
    return "".join(key for key in keys if cache.knows(key, "m"))


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


TEXTS = ["", "plain", "line\r\nline\n", "\u2028\u2029\x85\x0b\x1c", "😀 \ud83d", "\\u2028"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_kept_is_found_again(path: Path, text: str) -> None:
    keep(path, k=text, l="next")
    again = opened(path)
    found = asked("b")
    again.fill("k", "m", found)
    assert found == Result(**{**vars(answered(text)), "prompt": "b"})
    assert [again.knows(key, "m") for key in "klm"] == [True, True, False]


NO_ROWS = b'\xff\xfe\n[]\n5\n{"key": "x"}\n\n{"key": ["x"], "text": ""}\n'


@pytest.mark.parametrize("end", [b'{"key": "cut', b'{"key": "cut", "text": "\xf0\x9f', b"5", b"{}", b"\x00", NO_ROWS])
def test_a_file_that_was_cut_off_goes_on_and_what_is_no_row_counts_for_nothing(path: Path, end: bytes) -> None:
    keep(path, k="first")
    path.write_bytes(path.read_bytes() + end)
    for key, before in (("l", "k"), ("m", "kl")):
        assert known(path, "klmx") == before
        keep(path, **{key: key})
    assert known(path, "klmx") == "klm"


def test_a_row_that_was_cut_off_is_not_known_but_for_its_last_line_break(path: Path) -> None:
    keep(path, k="é" * 50)
    whole = path.read_bytes()
    inside = whole.index("é".encode())
    for end, found in ((len(whole) - 1, "kl"), (inside + 1, "l"), (inside, "l"), (1, "l")):
        path.write_bytes(whole[:end])
        keep(path, l="new")
        assert known(path, "kl") == found


def test_an_answer_that_was_broken_off_is_not_kept(path: Path) -> None:
    cache = opened(path)
    for key, reason in (("s", "stop"), ("l", "length"), ("a", "abort"), ("e", "error")):
        cache.keep(key, answered("half", reason))
    cache.close()
    assert [json.loads(line)["key"][-2:] for line in path.read_text().splitlines()] == ["-s", "-l"]
    path.write_text(path.read_text().replace('"length"', '"abort"'))
    assert [opened(path).knows(key, "m") for key in "sl"] == [True, False]


@pytest.mark.parametrize(
    "held",
    [b"id,text\n1,good\n", b"a note", b"\n", b'{\n"key": 1}', b'{"key": "x", "text": ""}\n', b"\xff\xfe\n", b"[]"],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(path: Path, held: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(held)
    with pytest.raises(InvalidRequest, match="it holds something else than rows"):
        RowCache(path, "m", {})
    assert path.read_bytes() == held


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(
    connected: PrivateServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    nowhere = [tmp_path / name for name in ("file/rows.jsonl", "a\0b", "a\ud800b", "long" * 100)]
    for wrong in (tmp_path, "/dev/zero", *nowhere):
        with pytest.raises(InvalidRequest, match="cache: rows cannot be kept in"):
            nbgen.map(["a"], cache=wrong, **OPTIONS)


@pytest.fixture
def almost_full(path: Path) -> Iterator[Path]:
    """A file that this process may not make much longer."""
    keep(path, k="one")
    with path.open("r+b") as file:
        file.truncate(FULL_AT - 20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT, limits[1]))
    yield path
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_takes_no_more_rows_costs_no_answer(
    connected: PrivateServer, almost_full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = nbgen.map(["a", "b", "c"], cache=almost_full, **OPTIONS)
    assert rows.completion_tokens.tolist() == [3] * 3
    assert capsys.readouterr().out.count("File too large") == 1
