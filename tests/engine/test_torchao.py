"""Checkpoints that torchao quantized, in every format that a CPU can read, and its rounding beside ours."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    FqnToConfig,
    Int4Tensor,
    Int4TilePackedTo4dTensor,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    PerTensor,
    quantize_,
)
from transformers import AutoModelForCausalLM, TorchAoConfig
from transformers.pytorch_utils import Conv1D

from nbgen.engine import int8_linear, linear, native_linear, quantization
from nbgen.engine.assembly import Assembly
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.native_int4_linear import NativeInt4Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.engine.torchao_weights import is_torchao
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import save_adapter
from tests.conftest import continuation, edit, save_model
from tests.engine.conftest import build, generate, ids

PROMPT = list(range(10, 40))
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)
REQUEST = GenerateRequest(rid="r", input_ids=PROMPT, params=PARAMS, logprobs=LogprobOptions(start=0))
FOUR = {"weight_dtype": torch.int4}
EIGHT_BITS, FOUR_BITS = Int8Linear | NativeInt8Linear, Int4Linear | NativeInt4Linear
#: By name: how torchao is told to round, and the layer that stands there then; None where numbers are written out.
FORMATS = {
    "int8": (Int8WeightOnlyConfig(), EIGHT_BITS),
    "int8 tensor": (Int8WeightOnlyConfig(granularity=PerTensor()), EIGHT_BITS),
    "int8 groups": (Int8WeightOnlyConfig(granularity=PerGroup(16)), None),
    "int8 inputs": (Int8DynamicActivationInt8WeightConfig(), EIGHT_BITS),
    "int4": (IntxWeightOnlyConfig(granularity=PerGroup(64), **FOUR), FOUR_BITS),
    "int4 rows": (
        IntxWeightOnlyConfig(granularity=PerAxis(0), mapping_type=MappingType.ASYMMETRIC, **FOUR),
        FOUR_BITS,
    ),
    "int4 small": (IntxWeightOnlyConfig(granularity=PerGroup(16), **FOUR), None),
    "int4 inputs": (Int8DynamicActivationIntxWeightConfig(weight_granularity=PerGroup(32), **FOUR), FOUR_BITS),
    "int8 of intx": (IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)), EIGHT_BITS),
    "float8": (Float8WeightOnlyConfig(), None),
    "some": (FqnToConfig({"re:.*_proj": Int8WeightOnlyConfig(), "re:.*o_proj": None}), EIGHT_BITS),
}


def quantized(folder: Path, made: Path, config: object, **options: object) -> Path:
    """The checkpoint as transformers quantizes and saves it."""
    described = TorchAoConfig(config, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=described)
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(made)
    return made


def reference(folder: Path) -> nn.Module:
    """transformers' own model of the checkpoint, with torchao's products; without the rounding of inputs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if is_torchao(weight) and any(
            getattr(weight, name, None) for name in ("act_quant_kwargs", "activation_quantization")
        ):
            module.weight = nn.Parameter(weight.dequantize(), requires_grad=False)
    return model


def continued(model: nn.Module, found: list[int]) -> list[int]:
    return continuation(model, PROMPT, PARAMS.max_new_tokens, found)


def check(folder: Path, expected: nn.Module) -> Assembly:
    """Text and scores are the expected model's."""
    assembly = build(folder)
    assert assembly.model.tier == "A"
    outputs = generate(assembly, [REQUEST])["r"]
    found = ids(outputs)
    assert found == continued(expected, found)
    whole = torch.tensor([PROMPT + found])
    with torch.inference_mode():
        scores = expected(whole).logits[0].log_softmax(-1)
    got = [entry.token[0] for output in outputs for entry in output.prompt_logprobs or ()][1:]
    got += [entry.token[0] for output in outputs for entry in output.logprobs or ()]
    torch.testing.assert_close(torch.tensor(got), scores[torch.arange(len(got)), whole[0, 1:]], rtol=0, atol=1e-3)
    return assembly


@pytest.mark.parametrize("name", FORMATS)
def test_text_and_scores_are_those_of_transformers_with_torchao(name: str, tiny_model: Path, tmp_path: Path) -> None:
    config, layer = FORMATS[name]
    folder = quantized(tiny_model, tmp_path / "made", config)
    assembly = check(folder, expected := reference(folder))
    model = assembly.engine._runner.model
    assert not any(map(is_torchao, model.parameters()))
    found = model.model.layers[0].mlp.up_proj
    assert isinstance(found, layer) if layer else not isinstance(found, EIGHT_BITS | FOUR_BITS)
    info, kept = assembly.model, {EIGHT_BITS: "8 bits", FOUR_BITS: "4 bits", None: "written out"}[layer]
    assert sum(p.numel() for p in expected.parameters()) == info.parameters
    assert info.quantization == f"torchao ({kept})"


def test_embeddings_may_be_quantized(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", tie_word_embeddings=True)
    config, _ = FORMATS["int8 of intx"]
    folder = quantized(model, tmp_path / "made", config, include_input_output_embeddings=True)
    check(folder, reference(folder))


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["int8", "int4", "float8"])
def test_any_type_may_be_asked_for(
    name: str, dtype: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU without bfloat16's arithmetic as well."""
    folder = quantized(tiny_model, tmp_path / "made", FORMATS[name][0])
    monkeypatch.setattr("nbgen.engine.loader._computes_in", lambda *_: False)
    assembly = build(folder, dtype=dtype)
    assert assembly.model.tier == "A"
    assert assembly.model.dtype == ("bfloat16" if dtype == "bfloat16" else "float32")


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64])
def test_int4_of_gpus_is_read_by_its_definition(group: int, scaled: bool, tiny_model: Path, tmp_path: Path) -> None:
    """Of two values in a byte the first is the low half; a scale and a middle for each group, before outputs."""
    expected = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    tensors = load_file(tiny_model / "model.safetensors")
    for name, module in expected.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            weight = module.weight.detach()
            values = torch.randint(-8, 8, weight.shape)
            scale, middle = (torch.randn(weight.shape[1] // group, len(weight)) / 30 for _ in range(2))
            packed = (values[:, ::2] & 15 | (values[:, 1::2] & 15) << 4).to(torch.uint8).view(torch.int8)
            before = torch.rand(weight.shape[1]) + 0.5 if scaled else None
            tensor = Int4Tensor(packed, scale, middle, [1, group], weight.shape, act_pre_scale=before)
            tensors[f"{name}.weight"] = tensor
            numbers = values * scale.T.repeat_interleave(group, 1) + middle.T.repeat_interleave(group, 1)
            module.weight = nn.Parameter(numbers if before is None else numbers * before, requires_grad=False)
    check(written(tiny_model, tmp_path / "made", tensors), expected)


def written(folder: Path, made: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A checkpoint of these tensors in torchao's own way of saving them."""
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("*.safetensors"))
    flat, metadata = flatten_tensor_state_dict(tensors)
    save_file({name: tensor.contiguous() for name, tensor in flat.items()}, made / "model.safetensors", metadata)
    described = TorchAoConfig(Int8WeightOnlyConfig()).to_dict()
    edit(made / "config.json", quantization_config=described)
    return made


def test_formats_of_gpus_alone_are_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith("_proj.weight"):
            packed = torch.zeros(len(weight) // 8, 8, 32, 4, dtype=torch.int32)
            scales = torch.ones(16, len(weight), 2, dtype=torch.bfloat16)
            tensors[name] = Int4TilePackedTo4dTensor(packed, scales, [1, 64], weight.shape)
    with pytest.raises(ModelError, match="Int4TilePackedTo4dTensor, which GPUs alone can read"):
        build(written(tiny_model, tmp_path / "made", tensors))


def test_what_torchao_wrote_long_ago_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "made"))
    edit(folder / "config.json", quantization_config={"quant_method": "torchao", "quant_type": "int8_weight_only"})
    with pytest.raises(ModelError, match="by an old torchao"):
        build(folder)


def test_what_is_quantized_is_not_quantized_again(tiny_model: Path, tmp_path: Path) -> None:
    folder = quantized(tiny_model, tmp_path / "made", Int8WeightOnlyConfig())
    with pytest.raises(ModelError, match="quantized already"):
        build(folder, quantization="int8")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("name", ["int8", "int4", "float8"])
def test_adapters_act_on_them_and_weights_are_given_back_and_taken_again(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(tmp_path / "adapter", tiny_model)
    folder = quantized(tiny_model, tmp_path / "made", FORMATS[name][0])
    expected = reference(folder)
    for module in expected.modules():
        if is_torchao(getattr(module, "weight", None)):
            module.weight = nn.Parameter(module.weight.dequantize(), requires_grad=False)
    assembly = build(folder)
    assembly.engine.install(assembly.adapters.load("a", str(adapter)))
    requests = [
        GenerateRequest(rid="plain", input_ids=PROMPT, params=PARAMS),
        GenerateRequest(rid="adapted", input_ids=PROMPT, params=PARAMS, adapter="a"),
    ]
    outputs = generate(assembly, requests)
    plain, adapted = ids(outputs["plain"]), ids(outputs["adapted"])
    assert plain == continued(expected, plain)
    assert adapted == continued(PeftModel.from_pretrained(expected, adapter).eval(), adapted) != plain
    assembly.occupation.release({"kv_cache", "weights"})
    assembly.occupation.resume({"kv_cache", "weights"})
    outputs = generate(assembly, requests)
    assert (ids(outputs["plain"]), ids(outputs["adapted"])) == (plain, adapted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_faster_layers_do_not_read_its_tensors(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(64, 64, dtype=dtype))
    quantize_(model, Int8WeightOnlyConfig(set_inductor_config=False))
    assert native_linear.replace(model) == linear.prepack(model) == []


@pytest.mark.parametrize("kind", quantization.KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.inference_mode()
def test_the_way_of_gpus_rounds_as_ours_does(name: str, kind: str, tmp_path: Path) -> None:
    """To the bit in float32, with the same scores. 4 bits need a GPU and widths of 1,024: below, both kinds have 8."""
    widths = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128} if name == "gpt2" else {}
    folder = save_model(tmp_path / "model", name, **widths)
    dtype = torch.bfloat16 if kind == "int4" else torch.float32
    ours, theirs = (AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval() for _ in range(2))
    held = quantization.quantize(ours, "int8", lambda *_: None)
    before = {
        path: module.weight.T if isinstance(module, Conv1D) else module.weight
        for path, module in theirs.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    quantization._by_torchao(theirs, kind)
    for path, weight in before.items():
        values, scale = int8_linear.rounded(weight)
        found = theirs.get_submodule(path).weight
        assert (found.qdata.int() - values.int()).abs().max() <= (0 if kind == "int8" else 1)
        torch.testing.assert_close(found.scale.flatten(), scale, rtol=1e-6 if kind == "int8" else 1e-2, atol=1e-9)
    got = quantization.held_bytes(theirs)
    assert abs(got - held) < 0.05 * held, "the bytes that are held, not those that the weights were"
    if kind == "int8":
        expected, scores = (model(torch.tensor([PROMPT])).logits for model in (ours, theirs))
        torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def test_the_way_of_gpus_leaves_the_process_as_it_is_and_says_what_it_needs(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    before = torch._inductor.config.save_config_portable()
    with pytest.raises(ModelError, match="dtype='bfloat16'"):
        quantization._by_torchao(model, "int4")
    quantization._by_torchao(model, "int8")
    assert torch._inductor.config.save_config_portable() == before
