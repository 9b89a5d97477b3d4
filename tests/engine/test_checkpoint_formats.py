"""Weights in every form they are read in, with transformers' own text in float32; others are refused by name."""

import shutil
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nbgen.engine import device
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.native_int4_linear import NativeInt4Linear
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest
from nbgen.model_files import read_json
from nbgen.sampling_params import SamplingParams
from tests.conftest import edit
from tests.engine.conftest import build, generate, greedy, ids

PROMPT = list(range(10, 40))
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def written(folder: Path, **changes: object) -> list[int]:
    request = GenerateRequest(rid="r", input_ids=PROMPT, params=PARAMS)
    return ids(generate(build(folder, **changes), [request])["r"])


def expected(folder: Path, found: list[int] | None = None) -> list[int]:
    (tokens,) = greedy(folder, [PROMPT], PARAMS.max_new_tokens, found and [found])
    return tokens


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shards_and_types_of_safetensors(folder: Path, dtype: torch.dtype, shards: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder).to(dtype)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    size = sum(weight.nbytes for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // shards + 1)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shards > 1)
    found = written(folder)
    assert found == expected(folder, found)
    kept = (
        torch.bfloat16 if dtype == torch.bfloat16 and device.computes_bfloat16(torch.device("cpu")) else torch.float32
    )
    assert build(folder, dtype="auto").model.dtype == str(kept).removeprefix("torch.")


@pytest.mark.parametrize(
    ("bits", "form", "group", "symmetric"),
    [
        (4, "pack-quantized", 32, True),
        (4, "pack-quantized", 32, False),
        (8, "pack-quantized", 32, False),
        (8, "int-quantized", None, True),
    ],
)
def test_compressed_tensors(
    folder: Path, tmp_path: Path, bits: int, form: str, group: int | None, symmetric: bool
) -> None:
    plain = expected(folder)
    compressed = compress(folder, tmp_path / "compressed", bits, form, group, symmetric)
    found = written(compressed)
    assert found == expected(compressed if symmetric else decompressed(compressed, tmp_path / "decompressed"), found)
    assert (found == plain) == (bits == 8), "four bits change the text"
    layer = build(compressed).engine._runner.model.model.layers[0].mlp.up_proj
    four_bits = isinstance(layer, Int4Linear | NativeInt4Linear)
    assert four_bits == (bits == 4), "what has 4 bits keeps them"
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


def compress(folder: Path, made: Path, bits: int, form: str, group: int | None, symmetric: bool = True) -> Path:
    """The checkpoint as the library saves it, with scales from each group's largest weight."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = QuantizationArgs(
        num_bits=bits, strategy="group" if group else "channel", group_size=group, symmetric=symmetric
    )
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
            if symmetric:
                module.weight_scale.data = (groups.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).detach()
                continue
            least, largest = groups.amin(-1), groups.amax(-1)
            module.weight_scale.data = ((largest - least) / (2**bits - 1)).detach()
            zero = (-least / module.weight_scale).round() - 2 ** (bits - 1)
            module.weight_zero_point.data = zero.detach().to(module.weight_zero_point.dtype)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, made / "model.safetensors")
    compressor.update_config(str(made))
    return made


def decompressed(folder: Path, made: Path) -> Path:
    """The library's own numbers of a packed checkpoint: transformers makes up zeros that are packed."""
    config = QuantizationConfig.model_validate(read_json(folder / "config.json", "it")["quantization_config"])
    (scheme,), compressor = config.config_groups.values(), BaseCompressor.load_from_registry(config.format)
    plain = load_file(folder / "model.safetensors")
    for layer in [name.removesuffix(".weight_packed") for name in plain if name.endswith(".weight_packed")]:
        own = {name.removeprefix(f"{layer}."): plain.pop(name) for name in list(plain) if name.startswith(f"{layer}.")}
        plain[f"{layer}.weight"] = compressor.decompress(own, scheme)["weight"]
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(plain, made / "model.safetensors", {"format": "pt"})
    edit(made / "config.json", quantization_config=None)
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
    with pytest.raises(
        ModelError, match=r"holds rounded numbers \(I32\) for .*\.weight, and .* no quantization_config"
    ):
        build(folder)
