"""Configurations of larger models than the files hold, and files larger than the memory, are refused before reading."""

import json
import shutil
from pathlib import Path

import pytest

from nbgen.engine import memory, model_size
from nbgen.engine.loader import load, load_embedding
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from tests.conftest import edit, save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build


@pytest.mark.parametrize("read", [load, load_embedding])
@pytest.mark.parametrize("architecture", [{"model_type": "llama"}, {"model_type": "qwen3_moe"}])
def test_a_configuration_without_sizes_makes_no_model_of_28_gigabytes(
    architecture: dict[str, str], read: object, tmp_path: Path
) -> None:
    (save_model(tmp_path) / "config.json").write_text(json.dumps(architecture | {"num_hidden_layers": 20}))
    with pytest.raises(
        ModelError, match=r"describes a model of [\d,]{13,} weights, and its files hold 107,328: it bel"
    ):
        read(EngineConfig(model=str(tmp_path)), lambda *_: None)


def test_more_layers_than_tensors_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(save_model(tmp_path) / "config.json", num_hidden_layers=100_000)
    monkeypatch.setattr(model_size, "_parameters", lambda *_: pytest.fail("it takes minutes"))
    with pytest.raises(ModelError, match="describes 100,000 layers, and its files hold 21 tensors: it belongs to"):
        build(tmp_path)


def test_what_is_nearly_all_there_is_told_by_name(tmp_path: Path) -> None:
    edit(save_model(tmp_path) / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lack model.layers.2.input_layernorm.weight, .*: download them again"):
        build(tmp_path)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma3n_text", "jamba"])
def test_models_that_are_whole_are_read(name: str, tmp_path: Path) -> None:
    assert build(save_model(tmp_path, name, **FAMILIES[name].changes)).model.parameters > 0


def test_weights_that_no_memory_holds_are_refused(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda *_: (2 * 10**5, 3 * 10**5))
    words = (
        r"take 0.0 GB, and there are 0.0 GB of memory here: use a smaller model, or fewer bits \(quantization='int4'\)"
    )
    with pytest.raises(ModelError, match=words):
        build(tiny_model)
    monkeypatch.setattr(memory, "device_memory", lambda *_: (10**4, 10**4))
    with pytest.raises(ModelError, match=r"here: use a smaller model$"):
        build(tiny_model, quantization="int4")


@pytest.mark.parametrize(("own", "dtype"), [("float32", "bfloat16"), ("bfloat16", "auto")])
def test_weights_of_32_bits_that_are_kept_in_16_may_take_more_than_there_is(
    own: str, dtype: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    edit(folder / "config.json", dtype=own)
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(memory, "device_memory", lambda *_: (size * 3 // 4, size * 3 // 4))
    assert build(folder, dtype=dtype).model.parameters > 0
    with pytest.raises(ModelError, match="use a smaller model"):
        build(folder, dtype="float32")
