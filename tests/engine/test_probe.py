"""What is chosen for a model where some way of running it fails, or there is no memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine import model_runner, probe
from nbgen.engine.attention import ReferenceAttention
from nbgen.engine.model_runner import ModelRunner
from nbgen.errors import ModelError


class Kernels(ReferenceAttention):
    """Kernels of a GPU that want more memory of its processors than there is."""

    graphs = True

    def attend(self, *_: Any) -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory, Required: 98304, Hardware limit: 65536")


@pytest.fixture
def model(tiny_model: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def test_where_kernels_do_not_fit_torchs_own_attention_serves(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "attention_for", lambda _: Kernels())
    runner = probe.choose_runner(model, copies_weights=False)
    assert (runner.tier, type(runner.attention)) == ("A", ReferenceAttention)


class Wrong(ReferenceAttention):
    """Attention on a machine that computes it wrongly."""

    def attend(self, *given: Any) -> torch.Tensor:
        return super().attend(*given) + 1


def test_where_scores_are_others_the_model_runs_as_it_is_and_the_log_says_so(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_runner, "attention_for", lambda _: Wrong())
    with caplog.at_level("INFO"):
        assert probe.choose_runner(model, copies_weights=False).tier == "C"
    assert "tier A gives other scores than the model itself" in caplog.text


@pytest.mark.parametrize("place", [(probe, "_stock_scores"), (ModelRunner, "run")])
def test_a_model_that_leaves_no_memory_is_refused_with_words(
    place: tuple[Any, str], model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(*place, full)
    with pytest.raises(ModelError, match="LlamaForCausalLM leaves no memory"):
        probe.choose_runner(model)
