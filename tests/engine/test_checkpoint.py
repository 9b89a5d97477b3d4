"""What cannot be loaded is refused with words, before anything of it runs."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from nbgen.engine import checkpoint
from nbgen.engine.loader import _foreign_errors
from nbgen.errors import ModelError
from tests.engine.conftest import build


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def find(folder: Path) -> Path:
    return checkpoint.find(str(folder), lambda *_: None)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_model_is_found(folder: Path) -> None:
    assert find(folder) == folder


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_is_not_run(folder: Path, file: str) -> None:
    edit(folder / file, auto_map={"AutoModelForCausalLM": "evil.Evil"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="does not run code"):
        find(folder)


def test_pickles_are_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch hit'\ntR.")
    with pytest.raises(ModelError, match="safetensors only"):
        find(folder)


def test_missing_parts_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        find(folder)
    with pytest.raises(ModelError, match=r"no config\.json"):
        find(tmp_path)
    with pytest.raises(ModelError, match="no folder"):
        find(tmp_path / "nowhere")


def test_a_damaged_file_is_said_to_be_damaged(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="damaged"):
        build(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        find(folder)


def test_what_is_no_language_model_is_refused(folder: Path) -> None:
    edit(folder / "config.json", model_type="vit")
    with pytest.raises(ModelError, match="no causal language model"):
        build(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"device": "cuda"}, "no NVIDIA GPU"), ({"device": "tpu?"}, "device"), ({"dtype": "int3"}, "dtype")],
)
def test_settings_that_cannot_work_are_refused(tiny_model: Path, changes, words: str) -> None:
    import torch

    if changes.get("device") == "cuda" and torch.cuda.is_available():
        changes = {"device": "cuda:99"}
    with pytest.raises(ModelError, match=words):
        build(tiny_model, **changes)


def test_sampling_defaults_come_from_the_generation_config(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_k": 0, "eos_token_id": [0, 7]}))
    assembly = build(folder)
    assert assembly.model.sampling_defaults == {"temperature": 0.3, "top_k": -1}
    assert build(folder, sampling_defaults="openai").model.sampling_defaults == {}
    assert assembly.engine._launcher._sampler.eos_ids == {0, 7}


def test_weights_that_memory_cannot_hold_are_said_to_be_too_large() -> None:
    with pytest.raises(ModelError, match="does not fit into the free memory"), _foreign_errors("big", "weights"):
        torch.empty(2**50, dtype=torch.uint8)
