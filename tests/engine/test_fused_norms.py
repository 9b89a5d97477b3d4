"""Norms of one kernel: the same scores, and the model's own where they are not."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from nbgen.engine import fused_norms, probe
from nbgen.engine.fused_norms import FusedNorm
from tests.conftest import save_model
from tests.engine.test_native_decoder import saved

#: Families whose layers are not Llama's, and how many norms a model of two layers has that are.
NORMS = {"olmo2": 0, "phi3": 5, "granite": 5, "smollm3": 5, "gemma2": 0}


def replaced(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, FusedNorm)]


@pytest.mark.parametrize("family", NORMS)
def test_the_scores_remain(family: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(saved(tmp_path, family), dtype=torch.float32).eval()
    ids = torch.arange(10, 40)[None]
    with torch.inference_mode():
        expected = model(ids).logits
        assert len(fused_norms.replace(model)) == len(replaced(model)) == NORMS[family]
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_a_gpu_s_models_of_other_code_get_them_where_they_are_right(
    right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a runner gets kernels of our own; here there are none to be had."""
    if not right:
        monkeypatch.setattr(FusedNorm, "forward", lambda self, x: x + 1)
    model = AutoModelForCausalLM.from_pretrained(save_model(tmp_path, "phi3"), dtype=torch.float32).eval()
    monkeypatch.setattr(probe, "_give_native_layers", probe._fuse)
    monkeypatch.setattr(probe, "_faster", lambda *_: [])
    runner = probe.choose_runner(model)
    assert (len(replaced(model)), runner.fused, runner.layers_in) == (5 if right else 0, None, "transformers")
