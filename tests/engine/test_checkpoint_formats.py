"""Weights in every form they are read in, with transformers' own text in float32; others are refused by name."""

import shutil
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nbgen.engine import device
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import edit
from tests.engine.conftest import build, generate, ids

PROMPT = list(range(10, 40))
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def written(folder: Path, **changes: object) -> list[int]:
    request = GenerateRequest(rid="r", input_ids=PROMPT, params=PARAMS)
    return ids(generate(build(folder, **changes), [request])["r"])


@torch.inference_mode()
def expected(folder: Path) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = torch.tensor([PROMPT])
    options = {"max_new_tokens": PARAMS.max_new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **options)[
        0, len(PROMPT) :
    ].tolist()


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shards_and_types_of_safetensors(folder: Path, dtype: torch.dtype, shards: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).to(dtype)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    size = sum(weight.nbytes for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // shards + 1)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shards > 1)
    assert written(folder) == expected(folder)
    kept = (
        torch.bfloat16 if dtype == torch.bfloat16 and device.computes_bfloat16(torch.device("cpu")) else torch.float32
    )
    assert build(folder, dtype="auto").model.dtype == str(kept).removeprefix("torch.")


@pytest.mark.parametrize(("bits", "form", "group"), [(4, "pack-quantized", 32), (8, "int-quantized", None)])
def test_compressed_tensors(folder: Path, tmp_path: Path, bits: int, form: str, group: int | None) -> None:
    plain = expected(folder)
    compressed = compress(folder, tmp_path / "compressed", bits, form, group)
    found = written(compressed)
    assert found == expected(compressed)
    assert (found == plain) == (bits == 8), "four bits change the text"
    with pytest.raises(ModelError, match="quantized already"):
        build(compressed, quantization="int8")


def test_compressed_tensors_where_bfloat16_has_no_arithmetic(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = compress(folder, tmp_path / "compressed", 8, "int-quantized", None)
    edit(compressed / "config.json", dtype="bfloat16")
    monkeypatch.setattr("nbgen.engine.loader._computes_in", lambda *_: False)
    assembly = build(compressed, dtype="auto")
    assert (assembly.model.tier, assembly.model.dtype) == ("A", "float32")


def compress(folder: Path, made: Path, bits: int, form: str, group: int | None) -> Path:
    """The checkpoint as the library saves it, with scales from each group's largest weight."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = QuantizationArgs(num_bits=bits, strategy="group" if group else "channel", group_size=group)
    config = QuantizationConfig(
        config_groups={"all": QuantizationScheme(targets=["Linear"], weights=weights)},
        ignore=["lm_head"],
        format=form,
        quantization_status="compressed",
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            groups = module.weight.unflatten(1, (-1, group or module.in_features))
            module.weight_scale.data = (groups.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).detach()
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, made / "model.safetensors")
    compressor.update_config(str(made))
    return made


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "pip install gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "pip install gptqmodel"),
        ({"load_in_4bit": True}, "pip install bitsandbytes"),
        ({"quant_method": "hqq"}, "pip install hqq"),
        ({"quant_method": "nvfp4"}, "'nvfp4', which is not read here"),
        ({"quant_method": "exl2"}, "'exl2', which is not read here; these are: .*compressed-tensors"),
    ],
)
def test_formats_that_need_something_are_refused_with_its_name(
    folder: Path, described: dict[str, object], words: str
) -> None:
    edit(folder / "config.json", quantization_config=described)
    with pytest.raises(ModelError, match=words):
        build(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt", "q4.gguf", "tf_model.h5"])
@pytest.mark.parametrize("configured", [True, False])
def test_other_files_are_not_opened(folder: Path, file: str, configured: bool) -> None:
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(b"cos\nsystem\n(S'touch hit'\ntR.")
    if not configured:
        (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=f"safetensors only, and .* holds {file}"):
        build(folder)


def test_whole_numbers_are_no_weights_where_nothing_says_what_they_stand_for(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    assert build(folder).model.parameters
    save_file(
        {name: tensor.view(torch.int32) for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ModelError, match=r"holds whole numbers \(I32\) for .*\.weight, and .* no quantization_config"):
        build(folder)
