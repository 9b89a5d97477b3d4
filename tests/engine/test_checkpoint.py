"""What cannot be loaded is refused with words, before anything of it runs."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MptConfig, Qwen3Config
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from nbgen import model_files
from nbgen.engine import checkpoint
from nbgen.engine.load_errors import foreign_errors
from nbgen.engine.loader import context_length
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.model_files import _check_type, model_folder, stamp, weight_files
from tests.conftest import edit
from tests.engine.conftest import build

#: A user who owns nothing here.
NOBODY = 65_534


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def find(folder: Path) -> Path:
    return checkpoint.find(str(folder), lambda *_: None)


def test_a_whole_model_is_found(folder: Path) -> None:
    assert find(folder) == folder


@pytest.mark.parametrize("shards", [1, 3])
def test_weights_that_are_there_twice_count_once(folder: Path, shards: int) -> None:
    """As in Mistral's folders, where `consolidated.safetensors` is for another program."""
    weights, whole = load_file(folder / "model.safetensors"), (folder / "model.safetensors").stat().st_size
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size=whole // shards + 2**12)
    if shards > 1:
        (folder / "model.safetensors").unlink()
    found = weight_files(folder)
    assert len(found) >= shards
    save_file(weights, folder / "consolidated.safetensors")
    assert weight_files(folder) == found
    assert whole <= checkpoint.weight_bytes(folder) < whole + 2**12
    assert checkpoint.tensors(folder).keys() == weights.keys()


def test_weights_are_downloaded_once() -> None:
    files = [
        "model-00001-of-00002.safetensors",
        "consolidated.safetensors",
        "original/model.safetensors",
        "dense/model.safetensors",
        "config.json",
    ]
    beside = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    wanted = filter_repo_objects(
        [*files, *beside, "pytorch_model.bin", "2_Dense/pytorch_model.bin"],
        allow_patterns=checkpoint.DOWNLOADED,
        ignore_patterns=checkpoint.NOT_DOWNLOADED,
    )
    assert list(wanted) == [files[0], "config.json", *beside]


def test_the_hub_is_asked_once_in_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a model whose weights are read again is the one that they were given back of, whatever is newer there."""
    newer = shutil.copytree(folder, folder.with_name("newer"))
    states = iter([folder, newer])
    monkeypatch.setattr(checkpoint, "_downloads", {})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(next(states)))
    found = [checkpoint.find("owner/name", lambda *_: None) for _ in range(3)]
    assert found == [folder] * 3


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_is_not_run(folder: Path, file: str) -> None:
    edit(folder / file, auto_map={"AutoModelForCausalLM": "evil.Evil"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError, match="does not run code"):
        find(folder)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_folder_that_may_not_be_read_is_said_to_be_one(
    folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)  # so that nobody else than root need pass the folders above
    folder.parent.chmod(0o755)
    folder.chmod(mode)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(ModelError, match="model cannot be read: Permission denied"):
            model_files.check("model")
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "Qwen/Qwen3-0.6B"),
        ("gpt-2", "openai-community/gpt2"),
        ("distilgpt2", "distilbert/distilgpt2"),
        ("bundle", "bundled"),
    ],
)
def test_a_name_that_is_almost_one_is_told_what_it_may_mean(name: str, meant: str) -> None:
    with pytest.raises(ModelError, match=rf"either; did you mean {re.escape(meant)}\?$"):
        model_files.check(name)


@pytest.mark.parametrize("file", ["weights.safetensors", "model-00001-of-00001.safetensors"])
def test_weights_under_another_name_are_told_their_name(folder: Path, file: str) -> None:
    (folder / "model.safetensors").rename(folder / file)
    with pytest.raises(ModelError, match=rf"are in {file}, and are read from model\.safetensors: rename the file"):
        find(folder)
    edit(folder / "config.json", transformers_weights=file)
    assert build(folder).model.parameters, "transformers can be told"


def test_several_files_need_their_index(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelError, match=r"no model\.safetensors\.index\.json, which says what is in .* and 1 more"):
        find(folder)


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_is_said_to_be_one(folder: Path, weights: str) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (folder / weights).write_bytes(b"x")
    assert find(folder) == folder, "a whole model may lie beside one"
    (folder / "model.safetensors").unlink()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"is an adapter, not a model: load the .*'org/base'.*load_adapter"):
            find(folder)
        (folder / "config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("shards", [[], "x", {"a": 1}, {"a": None}])
def test_a_damaged_index_is_said_to_be_damaged(shards: object, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ModelError, match=r"index\.json of .* is damaged"):
        find(folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("~nobody-of-this-name/x", "home of a user"),
        ("~\0", "home of a user"),
        ("x" * 300, "no folder"),
        ("a/" * 3000, "no folder"),
    ],
)
def test_names_that_no_folder_can_have(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        model_folder(name)
    assert stamp(name) == frozenset()


def test_a_file_is_said_to_be_one(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json' is a file: a model is a folder"):
        model_folder(str(folder / "config.json"))


def test_a_damaged_file_is_said_to_be_damaged(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors of .* is damaged or was cut off"):
        find(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        find(folder)


def test_a_damaged_one_of_several_files_is_named(folder: Path) -> None:
    first, second = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    (folder / "model.safetensors").rename(folder / first)
    shutil.copy(folder / first, folder / second)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": first, "b": second}}))
    assert find(folder) == folder
    (folder / second).write_bytes(b"nothing")
    with pytest.raises(ModelError, match=second):
        find(folder)


def test_a_folder_without_a_tokenizer_is_no_model(folder: Path) -> None:
    tokens = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        find(folder)
    edit(folder / "tokenizer_config.json", tokenizer_class="ByT5Tokenizer")
    assert find(folder) == folder
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        find(folder)
    (folder / "tokenizer.json").write_bytes(tokens)
    assert find(folder) == folder


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a', b'{"\xff": 1}', b"[" * 9999])
def test_a_damaged_tokenizer_is_said_to_be_damaged(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json of .* is damaged: it holds no JSON object"):
        find(folder)


def test_a_type_that_transformers_does_not_know_is_refused_before_it_is_imported(folder: Path) -> None:
    edit(folder / "config.json", model_type="frobnicator")
    with pytest.raises(ModelError, match="'frobnicator', which is no causal language model"):
        find(folder)


def test_every_type_that_transformers_has_a_language_model_of_is_known() -> None:
    for model_type in {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}:
        _check_type(model_type, "a")


def test_what_is_no_language_model_is_refused(folder: Path) -> None:
    edit(folder / "config.json", model_type="vit")
    with pytest.raises(ModelError, match="no causal language model"):
        build(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"device": "cuda"}, "no NVIDIA GPU"), ({"device": "tpu?"}, "device"), ({"dtype": "int3"}, "dtype")],
)
def test_settings_that_cannot_work_are_refused(tiny_model: Path, changes, words: str) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        changes = {"device": "cuda:99"}
    with pytest.raises(ModelError, match=words):
        build(tiny_model, **changes)


def change(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_weights_that_are_not_there_are_not_made_up(folder: Path) -> None:
    change(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight: download"):
        build(folder)
    edit(folder / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lack .* and 6 more"):
        build(folder)


def test_weights_of_another_shape_are_named(folder: Path) -> None:
    change(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(3)}))
    words = r"do not fit its config\.json: model\.norm\.weight is \[3\] in the files, and by the configuration \[\d+\]$"
    with pytest.raises(ModelError, match=words):
        build(folder)
    edit(folder / "config.json", intermediate_size=96)
    with pytest.raises(ModelError, match=r"mlp\.down_proj\.weight is .*, and 6 more do not fit"):
        build(folder)


def test_weights_that_are_no_numbers_are_named(folder: Path) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    change(folder, lambda weights: weights[name].fill_(float("nan")))
    with pytest.raises(ModelError, match=f"no numbers .{name} is not finite"):
        build(folder)


def test_a_context_is_as_long_as_the_configuration_says_under_any_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = MptConfig(max_seq_len=512)
    assert context_length(config, EngineConfig()) == 512
    assert context_length(config, EngineConfig(context_length=600)) == 512
    assert "the model's own is 512" in caplog.text


@pytest.mark.parametrize(("kind", "length"), [("linear", 512), ("default", 128)])
def test_a_context_that_was_stretched_is_as_long_as_it_was_stretched(kind: str, length: int) -> None:
    positions = {"rope_type": kind, "rope_theta": 10_000.0} | ({"factor": 4.0} if kind == "linear" else {})
    config = LlamaConfig(max_position_embeddings=128, max_sequence_length=512, rope_parameters=positions)
    assert context_length(config, EngineConfig()) == length


@pytest.mark.parametrize(("own", "length"), [(64, 64), (128, 512), (160, 512), (512, 512), (1024, 1024)])
def test_yarn_makes_a_context_as_many_times_as_long_as_it_says(own: int, length: int) -> None:
    positions = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    config = Qwen3Config(max_position_embeddings=own, rope_parameters=positions)
    assert context_length(config, EngineConfig()) == length


def test_a_context_without_room_is_refused(folder: Path) -> None:
    edit(folder / "config.json", max_position_embeddings=-1)
    with pytest.raises(ModelError, match=r"config\.json of .* has room for -1 tokens: it must be 1 or more"):
        build(folder)


def test_a_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'m\\udcff' is not UTF-8"):
        checkpoint.find("m\udcff", lambda *_: None)


def test_weights_that_memory_cannot_hold_are_said_to_be_too_large() -> None:
    with pytest.raises(ModelError, match="does not fit into the free memory"), foreign_errors("big", "weights"):
        torch.empty(2**50, dtype=torch.uint8)


@pytest.mark.parametrize("missing", [[0, 1, 2], [1], []])
def test_what_memory_lacks_of_the_weights_is_read_ahead(
    missing: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, chunk = [], checkpoint.PAGE_IN_BYTES
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(2 * chunk + 100))

    class File(FileIO):
        def readinto(self, buffer: bytearray) -> int:
            read.append((self.tell(), super().readinto(buffer)))
            return read[-1][1]

    ends = {(2 * chunk + 100 if index == 2 else (index + 1) * chunk) - 1 for index in missing}
    monkeypatch.setattr(checkpoint, "_is_in_memory", lambda _, at: at not in ends)
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: File(path))
    checkpoint.page_in(str(folder))
    assert read == [(index * chunk, 100 if index == 2 else chunk) for index in missing]


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_what_was_just_written_is_in_memory(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        assert checkpoint._is_in_memory(file.fileno(), 0)
        assert not checkpoint._is_in_memory(file.fileno(), 2**40), "there is no such byte"
