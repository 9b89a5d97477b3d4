"""Layers of our own: taken only for the code they stand for, and the same scores whatever else a step computes."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP

from nbgen.engine import native_linear, probe
from nbgen.engine.block_manager import BlockManager
from nbgen.engine.model_runner import ModelRunner
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from tests.conftest import save_model

BLOCK = 16
#: Families of such layers, and what else is special about them.
TAKEN = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 8, "head_dim": 32},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "num_key_value_heads": 1},
}
LEFT = ["gemma2", "phi3", "olmo2", "granite", "smollm3", "mixtral"]
DTYPES = [dtype for dtype in native_linear.NAMES if native_linear.readable(nn.Linear(64, 64, dtype=dtype))]


def runner_of(folder: Path, dtype: torch.dtype = torch.float32) -> ModelRunner:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return probe.choose_runner(model, BLOCK)


def saved(folder: Path, family: str) -> Path:
    return save_model(folder, family, **TAKEN.get(family, {}))


class Run:
    """Sequences of one runner, computed as they are told to."""

    def __init__(self, runner: ModelRunner) -> None:
        runner.cache.resize(64)
        self._runner, self._blocks = runner, BlockManager(64, BLOCK)

    def sequence(self, length: int, first: int) -> Sequence:
        return probe._sequence([(first + 7 * i) % 200 + 4 for i in range(length)])

    def step(self, *parts: tuple[Sequence, int]) -> list[torch.Tensor]:
        """Compute so many more tokens of each sequence; each one's scores after its last."""
        batch = [ScheduledSequence(probe._grow(sequence, count, self._blocks), count) for sequence, count in parts]
        output = self._runner.run(batch)
        for sequence, count in parts:
            sequence.num_computed += count
        return [output.scores[output.sampled.index(sequence)] for sequence, _ in parts]


@pytest.mark.parametrize("family", TAKEN)
def test_the_scores_are_transformers_own(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, family)
    runner = runner_of(folder)
    assert runner.native, "its layers are like Llama's"
    assert runner.plain, "and so is what is around them"
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    run = Run(runner)
    sequences = [run.sequence(30, 1), run.sequence(24, 90)]
    got = [run.step((sequences[0], 20), (sequences[1], 9))]
    got += [run.step((sequences[0], 1), (sequences[1], 1)) for _ in range(10)]
    for index, sequence in enumerate(sequences):
        with torch.inference_mode():
            scores = stock(torch.tensor([sequence.prompt_ids]), use_cache=False).logits[0]
        for step, row in enumerate(got):
            expected = scores[(20, 9)[index] - 1 + step]
            assert (row[index] - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize("family", LEFT)
def test_layers_of_other_code_stay_transformers_own(family: str, tmp_path: Path) -> None:
    assert runner_of(saved(tmp_path, family)).native is None


@pytest.mark.parametrize(
    ("part", "change"),
    [(LlamaDecoderLayer, lambda self, x, **_: (x,)[0]), (LlamaMLP, lambda self, x: self.down_proj(self.up_proj(x)))],
)
def test_changed_code_is_not_taken(
    part: type, change: object, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of a family, or a person's own class, would have it."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    for module in model.modules():
        if type(module) is part:
            module.__class__ = type(part.__name__, (part,), {"forward": change})
    assert probe.choose_runner(model, BLOCK).native is None


def test_another_activation_is_not_taken(tmp_path: Path) -> None:
    assert runner_of(save_model(tmp_path, "llama", hidden_act="gelu")).native is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_sequence_is_the_same_to_the_bit_however_it_is_cut_and_whatever_its_steps_compute_besides(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    runner = runner_of(saved(tmp_path, family), dtype)
    if runner.native is None:
        pytest.fail("nothing was tested")
    run = Run(runner)
    alone, beside = run.sequence(40, 1), run.sequence(40, 1)
    expected = [run.step((alone, 30))[0], *(run.step((alone, 1))[0] for _ in range(6))]
    others = [run.sequence(33, 50), run.sequence(70, 120)]
    run.step((beside, 13))
    got = [run.step((beside, 17))[0]]
    got += [run.step((beside, 1), (others[0], 20))[0], run.step((beside, 1), (others[0], 1), (others[1], 50))[0]]
    got += [run.step((beside, 1), (others[0], 1), (others[1], 1))[0] for _ in range(4)]
    for step, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(one, other), f"step {step}"
