"""A model's files that are damaged, or no files, are told by name before another model is given up for it."""

import json
import os
import shutil
from pathlib import Path

import pytest

from nbgen import model_files
from nbgen.errors import ModelError


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def find(folder: Path) -> Path | None:
    return model_files.check(str(folder))


def test_an_index_reads_nothing_beside_the_folder(folder: Path) -> None:
    outside = shutil.move(folder / "model.safetensors", folder.parent / "other.safetensors")
    (folder / "other.safetensors").symlink_to(outside)
    for shard in ("../other.safetensors", str(outside)):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
        with pytest.raises(ModelError, match=r"other\.safetensors', which is not in the model's folder"):
            find(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "other.safetensors"}}))
    assert find(folder) == folder, "as the hub's cache has them"


def test_weights_that_are_no_file_are_said_to_be_none(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.symlink_to("nowhere")
    with pytest.raises(ModelError, match=r"model\.safetensors of .* is a link to what is not there: .*cp -L"):
        find(folder)
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(ModelError, match=r"model\.safetensors of .* is no file"):
        find(folder)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", b"", "no JSON object"),
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1", "no JSON object"),
        ("tokenizer.json", b"[]", "no JSON object"),
        ("tokenizer_config.json", b"[1]", "no JSON object"),
        ("generation_config.json", b"[1, 2]", "no JSON object"),
        ("chat_template.jinja", b"\xff\xfe{{ messages }}", "not UTF-8"),
    ],
)
def test_what_is_damaged_is_seen_before_another_model_is_given_up(
    folder: Path, file: str, content: bytes, words: str
) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(ModelError, match=f"{file} of .* {words}"):
        find(folder)
