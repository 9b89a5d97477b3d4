"""A file of weights that is whole, cut off, or something else."""

import json
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from nbgen.safetensors_file import is_whole, tensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file({"a": numpy.zeros(100), "b": numpy.ones((3, 4), "float32")}, path := tmp_path / "a", {"format": "pt"})
    return path


def test_the_head_tells_of_the_tensors_and_nothing_of_its_remarks(tmp_path: Path) -> None:
    save_file({"a": numpy.zeros(100), "b": numpy.ones((3, 4), "float32")}, path := tmp_path / "a", {"shape": "odd"})
    assert is_whole(path)
    found = tensors(path)
    assert {name: (each.shape, each.numel, each.nbytes) for name, each in found.items()} == {
        "a": ((100,), 100, 800),
        "b": ((3, 4), 12, 48),
    }
    path.write_bytes(path.read_bytes()[:20])
    assert tensors(path) == {}


def test_a_file_is_whole_until_a_byte_is_missing_or_too_many(file: Path) -> None:
    assert is_whole(file)
    content = file.read_bytes()
    for changed in (content[:-1], content[: len(content) // 2], content[:20], content[:4], b"", content + b"x"):
        file.write_bytes(changed)
        assert not is_whole(file), len(changed)


@pytest.mark.parametrize(
    "head", ["", "[]", "{", '{"a": 1}', '{"a": {"data_offsets": "x"}}', '{"a": {"data_offsets": [0]}}', "[" * 99999]
)
def test_a_head_that_is_none_makes_no_whole_file(head: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(len(head).to_bytes(8, "little") + head.encode())
    assert not is_whole(path)


def test_a_head_of_half_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write((2**39).to_bytes(8, "little"))
        file.truncate(2**40)  # which takes no room
    assert not is_whole(path)


def test_garbage_and_pointers_to_a_file_elsewhere_are_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (
        bytes(range(256)) * 20,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"\xff" * 99,
    ):
        path.write_bytes(content)
        assert not is_whole(path)


def test_a_file_without_tensors_is_whole(tmp_path: Path) -> None:
    head = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    (tmp_path / "file").write_bytes(len(head).to_bytes(8, "little") + head)
    assert is_whole(tmp_path / "file")
