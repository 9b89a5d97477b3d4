"""Formats of GPUs on a CPU, beside the same numbers in float32; files by the definitions."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from nbgen.engine import native
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_scaled_linear import NativeScaledLinear
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.scaled_packers import E2M1, of_blocks

PROMPT = list(range(10, 40))
PARAMS = SamplingParams(max_new_tokens=10, temperature=0.0, ignore_eos=True)
REQUEST = GenerateRequest(rid="r", input_ids=PROMPT, params=PARAMS, logprobs=LogprobOptions(start=0))
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16}
#: What a file has for a weight, by suffix; and the numbers that this is.
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def fp8(weight: torch.Tensor, block: list[int] | None, powers: bool = False) -> Stored:
    """A scale for each block, or for all; of two to a whole power, a byte has its exponent and 127."""
    values, scales, numbers = of_blocks(weight, *(block or weight.shape), powers)
    written = (scales.log2() + 127).to(torch.uint8) if powers else scales if block else scales.squeeze()
    return {"": values, "_scale_inv": written}, numbers


def mxfp4(weight: torch.Tensor) -> Stored:
    """Experts `[experts, in, out]`: 32 inputs to an output share an exponent; a byte has two, low half first."""
    groups = weight.transpose(1, 2).unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(-1) / E2M1.max()).log2().ceil()
    scale = exponent.exp2()[..., None]
    values = ((groups / scale)[..., None] - E2M1).abs().argmin(-1).to(torch.uint8)
    stored = {"_blocks": values[..., ::2] | values[..., 1::2] << 4, "_scales": (exponent + 127).to(torch.uint8)}
    return stored, (E2M1[values.int()] * scale).flatten(-2).transpose(1, 2)


def write(
    folder: Path,
    made: Path,
    wanted: Callable[[str], bool],
    store: Callable[[torch.Tensor], Stored],
    **described: object,
) -> tuple[Path, Path]:
    """The checkpoint so quantized, and one of the same numbers."""
    quantized, plain = (Path(shutil.copytree(folder, made / name)) for name in ("quantized", "plain"))
    tensors, numbers = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        stored, numbers[name] = store(weight) if wanted(name) else ({"": weight}, weight)
        tensors |= {name + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
    save_file(tensors, quantized / "model.safetensors", {"format": "pt"})
    save_file({k: v.contiguous() for k, v in numbers.items()}, plain / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
    return quantized, plain


def in_fp8(folder: Path, made: Path, block: list[int] | None, method: str = "fp8") -> tuple[Path, Path]:
    options = {"quant_method": method, "activation_scheme": "dynamic", "weight_block_size": block}
    store = lambda weight: fp8(weight, block, powers=method == "mxfp8")  # noqa: E731
    return write(folder, made, lambda name: name.endswith("_proj.weight"), store, **options)


def check(quantized: Path, plain: Path) -> None:
    """In float32 text and scores are those of the numbers written out; in other types it runs."""
    assembly = build(quantized)
    outputs = generate(assembly, [REQUEST])["r"]
    expected = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    whole = torch.tensor([PROMPT + ids(outputs)])
    with torch.inference_mode():
        scores = expected(whole).logits[0].log_softmax(-1)
    assert ids(outputs) == scores[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    got = [entry.token[0] for output in outputs for entry in output.prompt_logprobs or ()][1:]
    got += [entry.token[0] for output in outputs for entry in output.logprobs or ()]
    torch.testing.assert_close(torch.tensor(got), scores[torch.arange(len(got)), whole[0, 1:]], rtol=0, atol=1e-3)
    assert assembly.model.parameters == sum(weight.numel() for weight in expected.parameters())
    in_bfloat16 = build(quantized, dtype="bfloat16")
    assert {weight.dtype for weight in in_bfloat16.engine._runner.model.parameters()} == {torch.bfloat16}
    assert in_bfloat16.model.tier == assembly.model.tier == "A"


@pytest.mark.parametrize(("method", "block"), [("fp8", [32, 32]), ("fp8", [96, 96]), ("fp8", None), ("mxfp8", [1, 32])])
def test_fp8(method: str, block: list[int] | None, tiny_model: Path, tmp_path: Path) -> None:
    check(*in_fp8(tiny_model, tmp_path, block, method))


def test_fp8_of_experts(tmp_path: Path) -> None:
    check(*in_fp8(save_model(tmp_path / "model", "qwen3_moe", **MOE), tmp_path, [32, 32]))


def test_mxfp4(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "gpt_oss", **GPT_OSS)
    wanted = lambda name: name.endswith(("experts.gate_up_proj", "experts.down_proj"))  # noqa: E731
    quantized, plain = write(folder, tmp_path, wanted, mxfp4, quant_method="mxfp4")
    check(quantized, plain)
    check_kept(quantized)


def check_kept(quantized: Path) -> None:
    """Experts' weights keep their 4 bits, the rest may be rounded; and nothing is read that is not whole."""
    if native.function("mix", torch.float32) is None:
        return
    whole, rounded = build(quantized), build(quantized, quantization="int8")
    assert (whole.model.quantization, rounded.model.quantization) == ("mxfp4 (4 bits)", "int8")
    for assembly in (whole, rounded):
        assert assembly.model.layers_in == "C++"
        model = assembly.engine._runner.model
        made = [m for m in model.modules() if isinstance(m, NativeExperts)]
        assert {type(product) for each in made for product in each.products} == {NativeScaledLinear}
    held = sum(p.nbytes for each in made for p in each.products) + sum(p.nbytes for p in model.parameters())
    assert held < rounded.model.weight_bytes
    assert rounded.model.weight_bytes < whole.model.weight_bytes
    with mock.patch.object(NativeExperts, "forward", lambda self, hidden, *_: hidden):
        assert build(quantized).model.layers_in == "transformers"
    held = load_file(quantized / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file(held | {name: held[name][:, :-4].contiguous()}, quantized / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="cannot be read"):
        build(quantized)


def test_what_is_written_out_may_be_rounded_again(tiny_model: Path, tmp_path: Path) -> None:
    quantized, plain = in_fp8(tiny_model, tmp_path, [32, 32])
    found, expected = (ids(generate(build(each, quantization="int8"), [REQUEST])["r"]) for each in (quantized, plain))
    assert found == expected


def test_a_damaged_file_is_refused_as_such(tiny_model: Path, tmp_path: Path) -> None:
    quantized, _ = in_fp8(tiny_model, tmp_path, [32, 32])
    (quantized / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="damaged"):
        build(quantized)
