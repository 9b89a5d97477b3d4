"""The file of a map's cache: whatever becomes of it, no row that was answered is lost."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.result import Result
from nbgen.notebook.row_cache import RowCache

OPTIONS = {"temperature": 0, "max_new_tokens": 3, "progress": False}
FULL_AT = 2**24


def keep(path: Path, **texts: str) -> None:
    """Keep an answer to each prompt."""
    cache = RowCache(path, "m", {})
    for prompt, text in texts.items():
        cache.keep(cache.key(Result(prompt=prompt)), Result(text, finish_reason="stop"))
    cache.close()


def kept(path: Path, *prompts: str) -> list[str]:
    """What the file says of each prompt; nothing where it knows no answer."""
    cache, results = RowCache(path, "m", {}), [Result(prompt=prompt) for prompt in prompts]
    for result in results:
        if cache.knows(key := cache.key(result), "m"):
            cache.fill(key, "m", result)
    cache.close()
    return [result.text for result in results]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.mark.parametrize("text", ["one\u2028two", "one\u2029two", "one\x85two", "one\r\ntwo", "one\x0btwo"])
def test_an_answer_with_any_line_break_is_known_again(path: Path, text: str) -> None:
    keep(path, a=text, b="plain")
    assert kept(path, "a", "b") == [text, "plain"]


def test_what_comes_after_a_line_that_was_cut_off_is_known_again(path: Path) -> None:
    keep(path, a="é" * 50, b="plain")
    whole = path.read_bytes()
    for end in (whole.index(b"\n"), whole.index("é".encode()) + 1, whole.index("é".encode()), 1):
        path.write_bytes(whole[:end])
        keep(path, b="again", c="new")
        assert kept(path, "b", "c") == ["again", "new"]


def test_lines_that_are_no_rows_count_for_nothing(path: Path) -> None:
    keep(path, a="one")
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[]\n5\n{"key": "x"}\n\n{"key": ["x"], "text": ""}\n')
    keep(path, b="two")
    assert kept(path, "a", "b", "c") == ["one", "two", ""]


@pytest.mark.parametrize(
    "held",
    [b"id,text\n1,good\n", b"a note", b"\n", b'{\n"key": 1}', b'{"key": "x", "text": ""}\n', b"\xff\xfe\n", b"[]"],
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(path: Path, held: bytes) -> None:
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
    keep(path, a="one")
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
