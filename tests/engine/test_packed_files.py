"""Checkpoints that are packed into words keep their bits, and their text and scores are those of the very numbers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

from nbgen.engine import device, loader, native_linear
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_int4_linear import NativeInt4Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.engine.native_scaled_linear import NativeScaledLinear
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from tests.conftest import SIZES, continuation, edit, save_model, save_tokenizer
from tests.engine import multimodal, packers
from tests.engine.packers import Rounding
from tests.engine.test_checkpoint_formats import PROMPT, written
from tests.soak import seldom

FOUR, EIGHT = Int4Linear | NativeInt4Linear, Int8Linear | NativeInt8Linear
#: Where there is no C++ these weights are written out.
OURS = native_linear.readable(nn.Linear(64, 64))
CODED, BLOCKS, SORTED = (NativeScaledLinear, NativeInt8Linear, NativeInt4Linear) if OURS else (None, None, None)
IDS = torch.arange(30)[None] + 4
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
#: GPTQ's `desc_act`: an input's group is anywhere, and another for each layer.
ACT = GPTQ | {"desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}
BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
CHANCE = np.random.default_rng(0)


def anywhere(size: int) -> Callable[[int], np.ndarray]:
    return lambda inputs: CHANCE.permutation(inputs) // size


#: Packed as another of the formats but for sizes, or for one number: tested when soaking.
VARIANTS = {
    "gptq v2",
    "gptq small",
    "gptq 8 blocks",
    "gptq 8 small",
    "gptq 8 act",
    "awq 64",
    "autoround plain",
    "nf4 small",
}
#: By name: what config.json says, who packs, and the layer that stands there then.
FORMATS: dict[str, tuple[dict[str, Any], packers.Packer, Any]] = {
    "gptq": (GPTQ, packers.gptq(Rounding()), FOUR),
    "gptq v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, packers.gptq(Rounding(), less=0), FOUR),
    "gptq rows": (GPTQ | {"group_size": -1}, packers.gptq(Rounding(group=-1)), FOUR),
    "gptq small": (GPTQ | {"group_size": 16}, packers.gptq(Rounding(group=16)), None),
    "gptq symmetric": (GPTQ | {"sym": True}, packers.gptq(Rounding(symmetric=True)), FOUR),
    "gptq 8": (GPTQ | {"bits": 8}, packers.gptq(Rounding(bits=8)), None),
    "gptq 8 blocks": (GPTQ | {"bits": 8, "group_size": 64}, packers.gptq(Rounding(8, 64, symmetric=True)), BLOCKS),
    "gptq 8 small": (GPTQ | {"bits": 8}, packers.gptq(Rounding(8, symmetric=True)), BLOCKS),
    "gptq 8 rows": (GPTQ | {"bits": 8, "group_size": -1}, packers.gptq(Rounding(8, -1, symmetric=True)), EIGHT),
    "gptq act": (ACT, packers.gptq(Rounding(), order=anywhere(32)), SORTED),
    "gptq 8 act": (ACT | {"bits": 8}, packers.gptq(Rounding(8, symmetric=True), order=anywhere(64)), BLOCKS),
    "gptq 8 act zeros": (ACT | {"bits": 8}, packers.gptq(Rounding(8), order=anywhere(32)), None),
    "awq": (AWQ, packers.awq(Rounding()), FOUR),
    "awq 64": (AWQ | {"group_size": 64}, packers.awq(Rounding(group=64)), FOUR),
    "autoround": (ROUND | {"packing_format": "auto_round:auto_gptq"}, packers.gptq(Rounding()), FOUR),
    "autoround plain": (ROUND | {"packing_format": "auto_round"}, packers.gptq(Rounding(), less=0), FOUR),
    "autoround awq": (ROUND | {"packing_format": "auto_round:auto_awq"}, packers.awq(Rounding()), FOUR),
    "nf4": (BITS, packers.bitsandbytes(), CODED),
    "nf4 double": (BITS | {"bnb_4bit_use_double_quant": True}, packers.bitsandbytes(double=True), CODED),
    "nf4 small": (BITS, packers.bitsandbytes(32), None),
    "int8": (BITS | {"load_in_4bit": False, "load_in_8bit": True}, packers.int8_rows, EIGHT),
}


def loaded(folder: Path, dtype: str = "float32") -> Any:
    return loader.load(EngineConfig(model=str(folder), dtype=dtype), lambda *_: None)


def stock(plain: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()


@torch.inference_mode()
def check_scores(model: nn.Module, stock: nn.Module, atol: float = 1e-4) -> None:
    got, own = model(IDS).logits.float(), stock(IDS).logits
    torch.testing.assert_close(got, own, rtol=0, atol=atol * float(own.abs().max()))


def check_text(packed: Path, stock: nn.Module) -> None:
    tokens = written(packed)
    assert tokens == continuation(stock, PROMPT, len(tokens), tokens)


@pytest.mark.parametrize("name", seldom(FORMATS, VARIANTS))
def test_text_and_scores_are_those_of_the_numbers(
    name: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, packer, layer = FORMATS[name]
    if layer is None:
        monkeypatch.setattr("nbgen.engine.native.rounds", lambda _: pytest.fail("products are compiled for no layer"))
    packed, plain = packers.pack(tiny_model, tmp_path, described, packer)
    found = loaded(packed)
    for part in (found.model.model.layers[0].mlp.up_proj, found.model.model.layers[1].self_attn.o_proj):
        assert isinstance(part, layer or nn.Linear)
    own = stock(plain)
    assert found.parameters == own.num_parameters()
    kept = "written out" if layer is None else "8 bits" if layer in (EIGHT, BLOCKS) else "4 bits"
    assert found.quantization == f"{described['quant_method']} ({kept})"
    check_scores(found.model, own)
    check_text(packed, own)


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.parametrize("name", ["awq", "gptq act", "nf4"])
def test_of_16_bits(tiny_model: Path, tmp_path: Path, name: str, computes: bool) -> None:
    """As checkpoints are; where there is no arithmetic for their type the numbers are the very same."""
    if computes and not device.computes_bfloat16(torch.device("cpu")):
        pytest.skip("this processor has no arithmetic for bfloat16")
    described, packer, layer = FORMATS[name]
    packed, plain = packers.pack(tiny_model, tmp_path, described, packer)
    weights = load_file(packed / "model.safetensors")
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    save_file(halves, packed / "model.safetensors", {"format": "pt"})
    edit(packed / "config.json", dtype="bfloat16" if computes else "float16")
    found = loaded(packed, "auto").model
    assert isinstance(found.model.layers[0].mlp.up_proj, layer or nn.Linear)
    check_scores(found, stock(plain), atol=5e-2 if computes else 2e-3)


@pytest.mark.skipif(not OURS, reason="this processor has no products of our own")
@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("gptq", NativeInt4Linear),
        ("gptq 8 blocks", NativeInt8Linear),
        ("gptq act", NativeInt4Linear),
        ("awq", NativeInt4Linear),
        ("nf4", NativeScaledLinear),
    ],
)
def test_experts(tmp_path: Path, name: str, product: type[nn.Module]) -> None:
    described, packer, _ = FORMATS[name]
    changes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "hidden_size": 64}
    folder = save_model(tmp_path / "mixture", "qwen3_moe", **changes)
    packed, plain = packers.pack(folder, tmp_path, described, packer)
    found = loaded(packed).model
    made = [module for name, module in found.named_modules() if name.endswith(".experts")]
    assert {type(each) for each in made} == {NativeExperts}
    assert {type(each) for experts in made for each in experts.products} == {product}
    own = stock(plain)
    check_scores(found, own)
    check_text(packed, own)


@pytest.mark.parametrize("name", ["gptq", "nf4", "int8"])
def test_what_transformers_makes_of_stand_ins_is_written_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, packer, _ = FORMATS[name]
    monkeypatch.setattr("nbgen.engine.expert_files.CHAINS", ())
    changes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    folder = save_model(tmp_path / "mixture", "qwen3_moe", **changes)
    packed, plain = packers.pack(folder, tmp_path, described, packer)
    found = loaded(packed).model
    assert not any(isinstance(module, FOUR | EIGHT | NativeScaledLinear) for module in found.modules())
    check_scores(found, stock(plain))


@pytest.mark.parametrize("name", ["gptq", "nf4", "int8"])
def test_weights_that_the_model_has_the_other_way_round(tmp_path: Path, name: str) -> None:
    """GPT-2's, which are `[in, out]`, and in files of any format `[out, in]`."""
    described, packer, _ = FORMATS[name]

    def turned(weight: np.ndarray) -> packers.Packed:
        tensors, numbers = packer(np.ascontiguousarray(weight.T))
        return tensors, np.ascontiguousarray(numbers.T)

    folder = save_model(tmp_path / "turned", "gpt2")
    packed, plain = packers.pack(folder, tmp_path, described, turned, beside="ln_|wte|wpe")
    check_scores(loaded(packed).model, stock(plain))


def test_groups_that_are_none(tiny_model: Path, tmp_path: Path) -> None:
    """compressed-tensors' files have -1 for each input of a layer whose inputs are in the files' order."""
    described = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    described["config_groups"] = {"all": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}

    def packer(weight: np.ndarray) -> packers.Packed:
        own = packers.rounded(weight, Rounding(symmetric=True))
        tensors = {"weight_packed": packers.words(own.values, 4), "weight_scale": own.scales}
        return tensors | {"weight_g_idx": np.full(weight.shape[1], -1, np.int32)}, own.weight

    packed, plain = packers.pack(tiny_model, tmp_path, described, packer)
    check_scores(loaded(packed).model, stock(plain))


def test_a_description_of_other_types_is_told(tiny_model: Path, tmp_path: Path) -> None:
    packed, _ = packers.pack(tiny_model, tmp_path, GPTQ, packers.gptq(Rounding()))
    described = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": [1]}
    edit(packed / "config.json", quantization_config=described)
    with pytest.raises(ModelError, match="cannot be read"):
        loaded(packed)


def test_a_last_group_of_fewer_inputs(tmp_path: Path) -> None:
    """AutoRound's files have no tensor that says which group an input is in."""
    packer, folder = packers.gptq(Rounding(group=128)), save_model(tmp_path / "odd", hidden_size=192)

    def without_groups(weight: np.ndarray) -> packers.Packed:
        tensors, numbers = packer(weight)
        return {name: tensor for name, tensor in tensors.items() if name != "g_idx"}, numbers

    packed, plain = packers.pack(folder, tmp_path, ROUND | {"group_size": 128}, without_groups)
    found = loaded(packed).model
    assert isinstance(found.model.layers[0].mlp.up_proj, FOUR)
    check_scores(found, stock(plain))


def test_a_last_block_of_fewer_weights(tmp_path: Path) -> None:
    packer = packers.bitsandbytes(block=4096)
    folder = save_model(tmp_path / "odd", intermediate_size=80)
    packed, plain = packers.pack(folder, tmp_path, BITS, packer)
    check_scores(loaded(packed).model, stock(plain))


def test_beside_a_tower_that_is_not_packed(tmp_path: Path) -> None:
    """Its files have other names than the model."""
    packed, plain = packers.pack(multimodal.save(tmp_path / "sees", "qwen2_vl"), tmp_path, AWQ, packers.awq(Rounding()))
    found = loaded(packed).model
    assert isinstance(found.model.language_model.layers[0].mlp.up_proj, FOUR)
    stock = AutoModelForMultimodalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(found(input_ids=IDS).logits, stock(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not OURS, reason="this processor has no products of our own")
def test_experts_apart_of_a_family_that_has_them_together(tmp_path: Path) -> None:
    (folder := tmp_path / "mixture").mkdir()
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    text = SIZES | sizes | {"vocab_size": save_tokenizer(folder), "rope_parameters": rope}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_vl_moe", text_config=text, vision_config=vision)
    whole = AutoModelForMultimodalLM.from_config(config).float().eval()
    save_file(dict(apart(whole.state_dict())), folder / "model.safetensors", {"format": "pt"})
    whole.config.save_pretrained(folder)
    packed, plain = packers.pack(folder, tmp_path, GPTQ, packers.gptq(Rounding()))
    found = loaded(packed).model
    assert sum(isinstance(module, NativeExperts) for module in found.modules()) == text["num_hidden_layers"]
    stock = AutoModelForMultimodalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(found(input_ids=IDS).logits, stock(input_ids=IDS).logits, rtol=1e-4, atol=1e-4)


def apart(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """With each expert's weights in tensors of their own."""
    for name, tensor in state.items():
        place, _, part = name.partition(".experts.")
        for index, weight in enumerate(tensor if part else ()):
            names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            for own, rows in zip(names, weight.chunk(len(names)), strict=True):
                yield f"{place}.experts.{index}.{own}.weight", rows.clone()
        if not part:
            yield name, tensor


def test_a_layer_that_lacks_something_is_told(tiny_model: Path, tmp_path: Path) -> None:
    packed, _ = packers.pack(tiny_model, tmp_path, AWQ, packers.awq(Rounding()))
    packers.take_out(packed, "model.layers.0.mlp.up_proj.scales")
    with pytest.raises(ModelError, match=r"lack model\.layers\.0\.mlp\.up_proj\.scales: download them again"):
        loaded(packed)


@pytest.mark.parametrize(
    ("described", "package"),
    [
        (AWQ | {"version": "gemv"}, "gptqmodel"),
        (GPTQ | {"checkpoint_format": "marlin"}, "gptqmodel"),
        (ROUND | {"packing_format": "auto_round:llm_compressor"}, "auto-round"),
        (AWQ | {"version": None, "format": "gemv"}, "gptqmodel"),
        (AWQ | {"version": None, "backend": "llm-awq"}, "gptqmodel"),
        (ROUND | {"packing_format": "auto_round:auto_awq", "rotation_config": {"r1": True}}, "auto-round"),
    ],
)
def test_what_is_packed_in_another_way_wants_its_package(
    tiny_model: Path, tmp_path: Path, described: dict[str, Any], package: str
) -> None:
    packed, _ = packers.pack(tiny_model, tmp_path, AWQ, packers.awq(Rounding()))
    edit(packed / "config.json", quantization_config=described)
    with pytest.raises(ModelError, match=f"pip install {package}"):
        loaded(packed)


@pytest.mark.parametrize(
    ("name", "added", "words"),
    [
        ("autoround", {"up_proj.act_scales": torch.ones(1)}, "pip install auto-round"),
        ("int8", {"up_proj.weight_format": torch.tensor(2, dtype=torch.uint8)}, "cannot be read"),
    ],
)
def test_layers_of_another_kind_are_refused(
    tiny_model: Path, tmp_path: Path, name: str, added: dict[str, torch.Tensor], words: str
) -> None:
    """AutoRound's that round their inputs, and those of 8 bits that lie as old GPUs want them."""
    described, packer, _ = FORMATS[name]
    packed, _ = packers.pack(tiny_model, tmp_path, described, packer)
    weights = load_file(packed / "model.safetensors")
    weights |= {f"model.layers.0.mlp.{part}": tensor for part, tensor in added.items()}
    save_file(weights, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=words):
        loaded(packed)
