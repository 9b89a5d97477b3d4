"""Weights of 8 and 4 bits: text and scores are those of transformers in float32 with the weights so rounded."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from nbgen.engine import int4_linear, int8_linear, native, native_experts, quantization
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.linear import FEW
from nbgen.engine.native import function
from nbgen.engine.native_int4_linear import NativeInt4Linear
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest, LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.adapters import save_adapter
from tests.conftest import continuation, save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids
from tests.engine.native_families import REMEMBERING, TAKEN
from tests.soak import seldom

PROMPTS = [list(range(10, 10 + length)) for length in (30, 7, 1, 100)]
PARAMS = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
#: Hidden sizes that 4 bits suit; a family each with grouped queries, with tied scores, with joined weights of its own,
#: with experts, whose router's weight the model's own code looks at, with streams of states.
MODELS = {
    "llama": {},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 16, "sliding_window": 8},
    "phi3": {"head_dim": 16},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128, "n_positions": 512},
    "qwen3_moe": {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8, "rope_parameters": None},
    **{name: TAKEN[name] for name in ("hunyuan_v1_moe", "gemma3n_text", "lfm2", "qwen3_5_moe_text", "qwen3_next")},
    **{name: TAKEN[name] for name in ("granitemoehybrid", "nemotron_h")},
}


def dequantized(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """What a weight `[out, in]` is once rounded, written out again from the definition of either kind."""
    weight = weight.float()
    if kind == "int8":
        step = weight.abs().amax(1, keepdim=True) / 127.5
        return (weight * (1 / step)).round().clamp(-128, 127) * step
    groups = weight.unflatten(1, (-1, 32))
    least, largest = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    step = (largest - least) / 15
    middle = least + 8 * step
    return ((((groups - middle) / step).round() + 8).clamp(0, 15).sub(8) * step + middle).flatten(1)


def reference(folder: Path, kind: str, *, experts: bool = True) -> nn.Module:
    """transformers' own model in float32 with the rounded weights in it."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and min(module.weight.shape) >= FEW and not name.endswith(".wg"):
            weight = module.weight.detach()
            flipped = isinstance(module, Conv1D)
            rounded = dequantized(weight.T if flipped else weight, "int8" if module is head else kind)
            # A new parameter: the embedding that may share the old one stays as it is.
            module.weight = nn.Parameter(rounded.T.contiguous() if flipped else rounded)
        for weight in native_experts.stored(module) if experts and hasattr(module, "has_gate") else ():
            for each in weight.transpose(1, 2) if module.is_transposed else weight:
                each.copy_(dequantized(each, kind))
    return model


@pytest.mark.parametrize("kind", quantization.KINDS)
@pytest.mark.parametrize(
    "name",
    seldom(
        MODELS, {"phi3", "hunyuan_v1_moe", "gemma3n_text", "qwen3_next", "nemotron_h", "gemma2", "granitemoehybrid"}
    ),
)
def test_text_and_scores_are_those_of_the_rounded_weights(name: str, kind: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", name, **MODELS[name])
    expected, plain = reference(folder, kind), AutoModelForCausalLM.from_pretrained(folder).eval()
    assembly = build(folder, quantization=kind, prefill_chunk=16)
    assert (assembly.model.tier, assembly.model.quantization) == ("B" if name in REMEMBERING else "A", kind)
    assert assembly.model.layers_in == "C++"
    requests = [
        GenerateRequest(rid=f"r{i}", input_ids=prompt, params=PARAMS, logprobs=LogprobOptions(start=0))
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = generate(assembly, requests)
    for request in requests:
        found = ids(outputs[request.rid])
        assert found == continuation(expected, request.input_ids, PARAMS.max_new_tokens, found)
        with torch.inference_mode():
            whole = torch.tensor([request.input_ids + found])
            scores, other = (model(whole).logits[0].log_softmax(-1) for model in (expected, plain))
        rows = torch.arange(whole.shape[1] - 1), whole[0, 1:]
        got = [entry.token[0] for output in outputs[request.rid] for entry in output.prompt_logprobs or ()][1:]
        got += [entry.token[0] for output in outputs[request.rid] for entry in output.logprobs or ()]
        error = (torch.tensor(got) - scores[rows]).abs().max()
        assert error < 2e-3, "as exact as float32 is"
        assert error < (other - scores)[rows].abs().max() / 3, "rounding changes what the test can see"


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_where_their_products_cannot_be_compiled_the_layers_are_torch_s(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts stay as they are."""
    monkeypatch.setattr(native, "rounds", lambda _: False)
    folder = save_model(tmp_path / "model", name, **MODELS[name])
    assembly = build(folder, quantization="int4")
    layers = {type(module) for module in assembly.engine._runner.model.modules()}
    assert layers.isdisjoint(NATIVE)
    assert {Int4Linear, Int8Linear} <= layers
    (outputs,) = generate(assembly, [GenerateRequest(rid="r", input_ids=PROMPTS[0], params=PARAMS)]).values()
    expected = reference(folder, "int4", experts=False)
    assert ids(outputs) == continuation(expected, PROMPTS[0], PARAMS.max_new_tokens)


def stored(weight: torch.Tensor, layer: type[nn.Module]) -> torch.Tensor:
    """The weight that a layer's numbers stand for."""
    if "Int8" in layer.__name__:
        values, scale = int8_linear.rounded(weight)
        return values.float() * scale[:, None]
    steps, scales = int4_linear.rounded(weight)
    scale, middle = (scales[..., side].float().T[..., None] for side in (0, 1))
    return ((steps.float().unflatten(1, (-1, int4_linear.GROUP)) - 8) * scale + middle).flatten(1)


@pytest.mark.parametrize(("kind", "layer"), [("int8", Int8Linear), ("int4", Int4Linear)])
@torch.inference_mode()
def test_weights_are_rounded_as_defined(kind: str, layer: type[nn.Module]) -> None:
    """A row of equal weights and a row of zeros among them."""
    torch.manual_seed(0)
    weight = torch.randn(64, 96)
    weight[3], weight[4] = 0.25, 0
    found, plain = stored(weight, layer), [row for row in range(64) if row not in (3, 4)]
    torch.testing.assert_close(found[plain], dequantized(weight, kind)[plain])
    torch.testing.assert_close(found[[3, 4]], weight[[3, 4]], rtol=0.005, atol=1e-4)


#: The largest error, of the largest result.
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 6e-3}
NATIVE = (NativeInt8Linear, NativeInt4Linear)
#: Layers with the types of numbers that this machine has products for.
PRODUCTS = [
    (layer, dtype)
    for layer in (Int8Linear, Int4Linear, *NATIVE)
    for dtype in ALLOWED
    if layer not in NATIVE or function("multiply", dtype) is not None
]


@pytest.mark.parametrize("rows", [1, 5, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("layer", "dtype"), PRODUCTS)
@torch.inference_mode()
def test_products_are_exact_whatever_the_inputs(
    layer: type[nn.Module], dtype: torch.dtype, bias: bool, rows: int
) -> None:
    """One input far larger than the others, a row of zeros, one of tiny numbers."""
    torch.manual_seed(0)
    weight, extra = torch.randn(128, 96).to(dtype), torch.randn(128).to(dtype) if bias else None
    inputs = torch.randn(rows, 96).to(dtype)
    inputs[0, 3], inputs[-1, :] = 300, 0 if rows > 1 else 1e-9
    exact = inputs.double() @ stored(weight, layer).double().T + (0 if extra is None else extra.double())
    got = layer(weight, extra)(inputs[None])[0]
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max() <= ALLOWED[dtype] * exact.abs().max()


@torch.inference_mode()
def test_of_no_rows_there_is_no_product() -> None:
    """As in a step of a prompt's first tokens, whose scores nobody wants."""
    for layer in (Int8Linear, Int4Linear):
        assert layer(torch.randn(128, 96), None)(torch.zeros(0, 96)).shape == (0, 128)


@torch.inference_mode()
def test_a_row_has_the_same_8_bit_product_whatever_is_beside_it() -> None:
    layer, inputs = Int8Linear(torch.randn(64, 96).bfloat16(), None), torch.randn(40, 96).bfloat16()
    alone = torch.cat([layer(row[None]) for row in inputs])
    assert torch.equal(layer(inputs), alone)


@torch.inference_mode()
def test_without_exact_integers_the_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, inputs = torch.randn(64, 96), torch.randn(64), torch.randn(7, 96)
    expected = Int8Linear(weight, bias)(inputs)
    monkeypatch.setattr(int8_linear, "products_are_exact", lambda: False)
    torch.testing.assert_close(Int8Linear(weight, bias)(inputs), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_an_unknown_layout_of_4_bits_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, inputs = torch.randn(64, 96), torch.randn(100, 96)
    expected = Int4Linear(weight, None)(inputs)
    monkeypatch.setattr(int4_linear, "BLOCKS", ())
    torch.testing.assert_close(Int4Linear(weight, None)(inputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("kind", quantization.KINDS)
def test_adapters_act_on_rounded_layers_as_in_peft(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "adapter", tiny_model)
    assembly = build(tiny_model, quantization=kind)
    assembly.engine.install(assembly.adapters.load("a", str(folder)))
    requests = [
        GenerateRequest(rid=f"{name}{i}", input_ids=prompt, params=PARAMS, adapter=name)
        for i, prompt in enumerate(PROMPTS)
        for name in ("", "a")
    ]
    outputs = generate(assembly, requests)
    base = reference(tiny_model, kind)
    for i, prompt in enumerate(PROMPTS):
        found = ids(outputs[str(i)])
        assert found == continuation(base, prompt, PARAMS.max_new_tokens, found)
    with_adapter = PeftModel.from_pretrained(base, folder).eval()
    for i, prompt in enumerate(PROMPTS):
        found = ids(outputs[f"a{i}"])
        assert found == continuation(with_adapter, prompt, PARAMS.max_new_tokens, found)


@torch.inference_mode()
def test_hidden_states_are_those_of_the_rounded_weights(tiny_model: Path) -> None:
    assembly = build(tiny_model, quantization="int8")
    wanted = TensorOptions(hidden_states=True)
    request = GenerateRequest(rid="r", input_ids=PROMPTS[0], params=PARAMS, tensors=wanted)
    outputs = generate(assembly, [request])["r"]
    pieces = [piece for output in outputs for piece in output.tensors if piece.name == "hidden_states"]
    states = torch.cat([torch.frombuffer(bytearray(piece.data), dtype=torch.float32) for piece in pieces]).view(-1, 64)
    expected = reference(tiny_model, "int8")(torch.tensor([PROMPTS[0]]), output_hidden_states=True).hidden_states[-1][0]
    torch.testing.assert_close(states, expected, rtol=1e-3, atol=1e-3)


def test_memory_is_counted_and_falls(tiny_model: Path) -> None:
    plain, eight, four = (
        build(tiny_model, quantization=kind).model.weight_bytes for kind in (None, *quantization.KINDS)
    )
    assert four < eight < plain


def test_what_cannot_be_rounded_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    mixture = save_model(tmp_path / "jetmoe", "jetmoe", **FAMILIES["jetmoe"].changes)
    with pytest.raises(ModelError, match="mixtures of experts"):
        build(mixture, quantization="int8")
    with pytest.raises(ModelError, match="'int3'; it must be one of int8, int4"):
        build(tiny_model, quantization="int3")
