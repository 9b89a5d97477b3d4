"""A mixture's weights stay in its files, one by one, wherever experts of our own make what transformers' make."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import WeightConverter

from nbgen.engine import device, loader, memory, native, native_linear
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.packers import take_out

SHAPE = {
    "num_experts": 6,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
}
IDS = torch.arange(30)[None] + 4

pytestmark = pytest.mark.skipif(
    not native_linear.readable(nn.Linear(64, 64)), reason="this processor has no products of our own"
)


def saved(folder: Path, family: str = "qwen3_moe", **changes: Any) -> Path:
    return save_model(folder, family, **FAMILIES[family].changes | SHAPE | changes)


def loaded(folder: Path, dtype: str = "float32", said: list[tuple[str, int, int]] | None = None) -> Any:
    return loader.load(EngineConfig(model=str(folder), dtype=dtype), lambda *each: (said or []).append(each))


def experts(model: nn.Module) -> list[Any]:
    return [module for name, module in model.named_modules() if name.endswith(".experts")]


@torch.inference_mode()
def check(model: Any, folder: Path) -> None:
    """Its scores, which are those of transformers' own code and weights."""
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(model(IDS).logits.float(), stock(IDS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "lfm2_moe", "glm4_moe", "nemotron_h"])
def test_they_lie_in_their_file(tmp_path: Path, family: str) -> None:
    """Those of LFM2 have names of their own in it."""
    folder, said = saved(tmp_path, family), [("", 0, 0)]
    found = loaded(folder, said=said)
    assert found.parameters == AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    made = experts(found.model)
    assert {type(each) for each in made} == {NativeExperts}
    assert said[-1][0] == "laying out experts"
    spans = [(p.weight.data_ptr(), p.weight.data_ptr() + p.weight.nbytes) for each in made for p in each.products]
    is_mapped = memory._mapped_from_weights()
    assert all(is_mapped(*span) for span in spans)
    check(found.model, folder)


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "quick_gelu"}, {"moe_intermediate_size": 30}], ids=["another gate", "no whole vectors"]
)
def test_what_is_not_ours_gets_what_transformers_makes(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = saved(tmp_path, **changes)
    found = loaded(folder).model
    assert not any(isinstance(each, NativeExperts) for each in experts(found))
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, weight in stock.named_parameters():
        assert torch.equal(found.get_parameter(name), weight)


def test_experts_that_make_something_else_are_not_kept(tmp_path: Path) -> None:
    folder, stock = saved(tmp_path), NativeExperts.forward
    with mock.patch.object(NativeExperts, "forward", lambda *args: stock(*args) * 1.1):
        found = loaded(folder).model
    assert not any(isinstance(each, NativeExperts) for each in experts(found))
    check(found, folder)


@pytest.mark.parametrize("computes", [True, False], ids=["as they are", "in float32"])
def test_of_bfloat16(tmp_path: Path, computes: bool) -> None:
    if computes and native.function("mix", torch.bfloat16) is None:
        pytest.skip("this processor has no products of bfloat16")
    folder = saved(tmp_path)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    with mock.patch.object(device, "computes_bfloat16", return_value=computes):
        found = loaded(folder, "auto").model
    (first, *_) = made = experts(found)
    assert {type(each) for each in made} == {NativeExperts}
    assert (first.dtype, found.dtype) == ((torch.bfloat16 if computes else torch.float32),) * 2
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        got, expected = found(IDS).logits.float(), stock(IDS).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=float(expected.abs().max()) * (5e-2 if computes else 1e-4))


def test_transformers_is_as_it_was_afterwards(tmp_path: Path) -> None:
    before = WeightConverter.convert
    folder = saved(tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelError):
        loaded(folder)
    assert WeightConverter.convert is before


def test_an_expert_that_a_file_lacks_is_told(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    take_out(folder, "model.layers.0.mlp.experts.3.up_proj.weight")
    with pytest.raises(ModelError, match="cannot be read"):
        loaded(folder)
