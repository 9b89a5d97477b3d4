"""Experts of our own: what a family's make, the same bits whatever else a step computes, from weights of any kind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from nbgen.engine import half_weights, memory, native, native_experts, native_linear, quantization
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_int4_linear import int4_layer
from nbgen.engine.native_int8_linear import int8_layer
from nbgen.engine.native_linear import NativeLinear
from tests.conftest import at_least, save_model
from tests.engine.test_memory import resident

#: Families whose experts have their weights side by side; flipped and by turns, with biases; flipped.
KNOWN = ["mixtral", "qwen3_moe", "gpt_oss", *(["aria_text"] if at_least("transformers", "5.24") else [])]
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "moe_num_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "vocab_size": 64,
    "pad_token_id": 0,
}
DTYPES = [dtype for dtype in native.KINDS if native_linear.readable(nn.Linear(64, 64, dtype=dtype))]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

pytestmark = pytest.mark.skipif(not DTYPES, reason="this processor has no products of our own")


def stock(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """One layer's experts of a family, with random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE | changes))
    experts: Any = next(module for module in model.modules() if hasattr(module, "gate_up_proj"))
    for parameter in experts.parameters():
        nn.init.normal_(parameter, std=0.3)
    return experts.to(dtype)


def routed(rows: int, each: int = 3, experts: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.rand(rows, experts).topk(each).indices, torch.rand(rows, each)


def same(made: torch.Tensor, expected: torch.Tensor) -> None:
    most = float(expected.abs().max())
    torch.testing.assert_close(made, expected, rtol=0, atol=TOLERANCE[made.dtype] * most)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", KNOWN)
@torch.inference_mode()
def test_they_make_what_the_family_s_make(family: str, dtype: torch.dtype) -> None:
    experts = stock(family, dtype)
    assert native_experts.known(experts)
    ours = native_experts.of(experts)
    for rows in (0, 1, 2, 7, 50, 200):
        hidden, (chosen, shares) = torch.randn(rows, 64, dtype=dtype), routed(rows)
        made = ours(hidden, chosen, shares.to(dtype))
        if rows:
            same(made, experts(hidden, chosen, shares.to(dtype)))
        alone = [ours(*(part[i : i + 1] for part in (hidden, chosen, shares.to(dtype)))) for i in range(rows)]
        assert torch.equal(made, torch.cat([made[:0], *alone]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("gate", "up"), [(NativeLinear, int8_layer), (int8_layer, NativeLinear)], ids=["up", "gate"])
@torch.inference_mode()
def test_a_gate_and_what_it_lets_through_may_be_kept_otherwise(gate: Any, up: Any, dtype: torch.dtype) -> None:
    """Some numbers of rows, of so many inputs, are a few for rounded weights and more than that for others."""
    torch.manual_seed(0)
    weights = [torch.randn(shape, dtype=dtype) / 32 for shape in ((64, 2048), (64, 2048), (2048, 64))]
    makes = gate, up, NativeLinear
    ours = NativeExperts([[make(weight, None) for make, weight in zip(makes, weights, strict=True)]], 0, dtype)
    opens, through, down = (weight.float() for weight in weights)
    for rows in (1, 2, 5, 6, 7, 8, 9, 16, 30):
        hidden = torch.randn(rows, 2048, dtype=dtype)
        made = ours(hidden, torch.zeros(rows, 1, dtype=torch.long), torch.ones(rows, 1, dtype=dtype))
        wide = hidden.float()
        expected = (nn.functional.silu(wide @ opens.T) * (wide @ through.T)) @ down.T
        assert (made - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.inference_mode()
def test_threads_change_no_bit(threads: int) -> None:
    ours, (chosen, shares), hidden = native_experts.of(stock("mixtral")), routed(40), torch.randn(40, 64)
    before = torch.get_num_threads()
    expected = ours(hidden, chosen, shares)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(ours(hidden, chosen, shares), expected)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def test_a_choice_of_none_adds_nothing() -> None:
    """Some families have one expert more than there are, which leaves a token alone."""
    experts, (chosen, shares), hidden = stock("mixtral"), routed(9), torch.randn(9, 64)
    experts.config._experts_implementation = "eager"
    chosen[::2, 1], chosen[3] = 8, 8
    none = chosen == 8
    expected = experts(hidden, chosen.masked_fill(none, 0), shares.masked_fill(none, 0.0))
    same(native_experts.of(experts)(hidden, chosen, shares), expected)


@pytest.mark.parametrize("layer", [int8_layer, int4_layer], ids=["int8", "int4"])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@torch.inference_mode()
def test_of_fewer_bits_each_makes_what_its_products_make(family: str, layer: Any) -> None:
    ours = native_experts.of(stock(family)).remade(lambda product: layer(product.weight, product.bias))
    hidden = torch.randn(5, 64)
    for index, (gate, up, down) in enumerate(zip(*[ours.products] * 3, strict=True)):
        made = ours(hidden, torch.full((5, 1), index), torch.ones(5, 1))
        expected = down(native_experts.GATES[2 if family == "gpt_oss" else 0](gate(hidden), up(hidden)))
        same(made, expected)


@pytest.mark.parametrize("activation", ["gelu", "relu", "relu2"])
@torch.inference_mode()
def test_every_gate_makes_what_theirs_makes(activation: str) -> None:
    experts, (chosen, shares), hidden = stock("mixtral", hidden_act=activation), routed(9), torch.randn(9, 64) * 3
    experts.config._experts_implementation = "eager"
    same(native_experts.of(experts)(hidden, chosen, shares), experts(hidden, chosen, shares))


@pytest.mark.parametrize("change", [{"hidden_act": "quick_gelu"}, {"hidden_size": 62}], ids=str)
def test_others_are_left_to_transformers(change: dict[str, Any]) -> None:
    assert not native_experts.known(stock("mixtral", **change))


def test_another_limit_is_seen() -> None:
    experts = stock("gpt_oss")
    experts.limit = 8.0
    assert not native_experts.known(experts)


def test_weights_stay_where_they_lie_or_are_left_alone() -> None:
    experts, flipped = stock("qwen3_moe"), stock("gpt_oss")
    model = nn.ModuleDict({"experts": experts, "flipped": flipped})
    ((_, name, was),) = native_experts.replace(model)
    made: Any = model["experts"]
    assert (name, was, model["flipped"]) == ("experts", experts, flipped)
    assert next(made.products).weight.data_ptr() == experts.gate_up_proj.data_ptr()


@torch.inference_mode()
def test_what_lies_otherwise_is_copied_in_place_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is memory for it: else its file is read again and again."""
    folder = save_model(tmp_path, "gpt_oss", **SHAPE | {"intermediate_size": 512})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    hidden, (chosen, shares) = torch.randn(9, 64), routed(9)
    expected = model.model.layers[0].mlp.experts(hidden, chosen, shares)
    monkeypatch.setattr(memory, "device_memory", lambda _: (2**20, 2**30))
    assert not native_experts.replace(model)
    monkeypatch.undo()
    before = resident(folder / "model.safetensors")
    assert len(native_experts.replace(model)) == 1
    same(model.model.layers[0].mlp.experts(hidden, chosen, shares), expected)
    assert resident(folder / "model.safetensors") < before // 2


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@torch.inference_mode()
def test_weights_of_16_bits_compute_in_float32(family: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, family, **SHAPE | {"vocab_size": 256, "num_experts_per_tok": 2})
    wide, half = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval() for _ in range(2))
    half_weights.widen(half)
    assert [type(module) for module in half.modules() if module.__class__.__name__.endswith("Experts")] == [
        NativeExperts
    ]
    ids = torch.arange(40)[None] + 4
    same(half(ids).logits, wide.float()(ids).logits)
    assert (
        quantization.quantize(half, "int8", lambda *_: None)
        < quantization.quantize(wide, "int8", lambda *_: None) * 1.5
    )
