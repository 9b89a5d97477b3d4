"""Checkpoints of numbers of 8 and 4 bits beside their scales, whoever wrote them, are read as these numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nbgen.engine import checkpoint, quantized_checkpoint
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_float8_linear import NativeFloat8Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.engine.native_scaled_linear import NativeScaledLinear
from nbgen.errors import ModelError
from tests.conftest import edit, save_model
from tests.engine.packers import Packer, pack, take_out
from tests.engine.scaled_packers import e4m3, int8, mxfp4, mxfp8, nvfp4
from tests.engine.test_packed_files import OURS, check_scores, loaded, stock

EIGHT, FOUR = (NativeFloat8Linear, NativeScaledLinear) if OURS else (None, None)


def compressed(form: str, bits: int = 8, type: str = "float", **weights: object) -> dict[str, Any]:
    """Of which the inputs are to be rounded, too."""
    own, inputs = {"num_bits": bits, "type": type, **weights}, {"num_bits": 8, "type": type, "strategy": "token"}
    group = {"targets": ["Linear"], "weights": own, "input_activations": {**inputs, "dynamic": True}}
    asked = {"format": form, "config_groups": {"all": group}, "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", "quantization_status": "compressed", **asked}


def fp8(block: list[int] | None = None) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}


def modelopt(form: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": form}


ROWS = {"type": "int", "strategy": "channel"}
#: By name: what config.json says, who packs, and the layer that stands there then.
FORMATS: dict[str, tuple[dict[str, Any], Packer, Any]] = {
    "outputs": (compressed("float-quantized", strategy="channel"), e4m3("weight_scale", rows=1), EIGHT),
    "whole": (compressed("float-quantized", strategy="tensor"), e4m3("weight_scale", beside="input_scale"), EIGHT),
    "blocks": (compressed("float-quantized", block_structure=[48, 64]), e4m3("weight_scale", 48, 64), EIGHT),
    "w8a8": (compressed("int-quantized", **ROWS), int8(symmetric=True), Int8Linear | NativeInt8Linear),
    "w8a8 zeros": (compressed("int-quantized", symmetric=False, **ROWS), int8(symmetric=False), None),
    "mxfp8": (compressed("mxfp8-quantized"), mxfp8, EIGHT),
    "mxfp4": (compressed("mxfp4-pack-quantized", 4), mxfp4, FOUR),
    "nvfp4": (compressed("nvfp4-pack-quantized", 4), nvfp4(divides=True), None),
    "deepseek": (fp8([48, 64]), e4m3("weight_scale_inv", 48, 64), EIGHT),
    "small blocks": (fp8([48, 48]), e4m3("weight_scale_inv", 48, 48), None),
    "autofp8": (fp8(), e4m3("weight_scale", beside="input_scale"), EIGHT),
    "mistral": (fp8(), e4m3("weight_scale_inv", beside="activation_scale"), EIGHT),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, e4m3("weight_scale", rows=1), EIGHT),
    "quark": ({"quant_method": "quark"}, e4m3("weight_scale"), EIGHT),
    "modelopt": (modelopt("FP8"), e4m3("weight_scale", beside="input_scale"), EIGHT),
    "modelopt nvfp4": (modelopt("NVFP4"), nvfp4(divides=False), None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_scores_are_those_of_the_numbers(name: str, tiny_model: Path, tmp_path: Path) -> None:
    described, packer, layer = FORMATS[name]
    packed, plain = pack(tiny_model, tmp_path, described, packer)
    found = loaded(packed)
    assert isinstance(found.model.model.layers[1].mlp.down_proj, layer or nn.Linear)
    kept = {None: "written out", FOUR: "4 bits"}.get(layer, "8 bits")
    assert found.quantization == f"{described['quant_method']} ({kept})"
    whole = found.parameters * 4
    assert (found.weight_bytes == whole) if layer is None else (found.weight_bytes < 0.6 * whole)
    check_scores(found.model, stock(plain), atol=1e-5)


@pytest.mark.parametrize("name", ["deepseek", "nvfp4"])
def test_experts(name: str, tmp_path: Path) -> None:
    described, packer, layer = FORMATS[name]
    changes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    packed, plain = pack(save_model(tmp_path / "mixture", "qwen3_moe", **changes), tmp_path, described, packer)
    found = loaded(packed).model
    made = [module for module in found.modules() if isinstance(module, NativeExperts)]
    assert {type(product) for experts in made for product in experts.products} == ({layer} - {None})
    check_scores(found, stock(plain), atol=1e-5)


def test_what_says_so_beside_config(tiny_model: Path, tmp_path: Path) -> None:
    """As older checkpoints of ModelOpt do; where nothing does, the numbers are not taken for weights."""
    _, packer, _ = FORMATS["modelopt"]
    packed, plain = pack(tiny_model, tmp_path, modelopt("FP8"), packer)
    edit(packed / "config.json", quantization_config=None)
    with pytest.raises(ModelError, match=r"rounded numbers \(F8_E4M3\) for .*no quantization_config"):
        loaded(packed)
    (packed / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}', encoding="utf-8")
    check_scores(loaded(packed).model, stock(plain), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "added", "words"),
    [
        ("modelopt", "mlp.up_proj.pre_quant_scale", "'modelopt', which is not read here"),
        ("fbgemm", "mlp.up_proj.weight_zero_point", "'fbgemm_fp8', which is not read here"),
        ("modelopt nvfp4", "mlp.up_proj.weight", "'modelopt', which is not read here"),
    ],
)
def test_layers_of_another_kind_are_refused(
    name: str, added: str, words: str, tiny_model: Path, tmp_path: Path
) -> None:
    described, packer, _ = FORMATS[name]
    packed, _ = pack(tiny_model, tmp_path, described, packer)
    weights = load_file(packed / "model.safetensors")
    weights[f"model.layers.0.{added}"] = torch.ones(128, 48, dtype=torch.uint8)
    save_file(weights, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=words):
        loaded(packed)


def test_numbers_without_scales_are_told(tiny_model: Path, tmp_path: Path) -> None:
    described, packer, _ = FORMATS["deepseek"]
    packed, _ = pack(tiny_model, tmp_path, described, packer)
    take_out(packed, "model.layers.0.mlp.up_proj.weight_scale_inv")
    with pytest.raises(ModelError, match=r"lack the scales of model\.layers\.0\.mlp\.up_proj\.weight: download"):
        loaded(packed)


@pytest.mark.parametrize(
    ("name", "words"), [("autofp8", r"weight_scale: .* on a CPU alone"), ("small blocks", "parts of blocks")]
)
def test_what_transformers_would_read_as_other_numbers(name: str, words: str, tiny_model: Path, tmp_path: Path) -> None:
    """For a GPU."""
    described, packer, _ = FORMATS[name]
    packed, _ = pack(tiny_model, tmp_path, described, packer)
    with pytest.raises(ModelError, match=words):
        quantized_checkpoint.check(packed, checkpoint.tensors(packed), "it", None, on_cpu=False)
