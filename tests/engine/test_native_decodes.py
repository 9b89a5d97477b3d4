"""Steps that go on from the last one: the same scores, to the bit, as where each is prepared anew."""

from pathlib import Path

import pytest
import torch

from nbgen.engine.attention_plan import CHUNK
from nbgen.engine.native_decodes import NativeDecodes
from nbgen.engine_config import BLOCK_SIZE
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids
from tests.engine.test_native_decoder import DTYPES, Run, runner_of, saved


class Steps:
    """Counts those that went on, and those that did not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.went_on: list[bool] = []
        goes_on = NativeDecodes.goes_on
        monkeypatch.setattr(NativeDecodes, "goes_on", lambda batch, rows: self._noted(goes_on(batch, rows)))

    def _noted(self, went_on: bool) -> bool:
        self.went_on.append(went_on)
        return went_on


def everything(run: Run) -> list[torch.Tensor]:
    """Scores of sequences that come, go on over blocks and chunks, share a beginning, and go."""
    first, second, third = run.sequence(300, 1), run.sequence(300, 90), run.sequence(300, 90)
    found = run.step((first, 20), (second, 9))
    for _ in range(CHUNK):
        found += run.step((first, 1), (second, 1))
    found += run.step((first, 1), (second, 1), (third, 5))
    for _ in range(BLOCK_SIZE + 3):
        found += run.step((first, 1), (second, 1), (third, 1))
    for _ in range(BLOCK_SIZE + 3):
        found += run.step((third, 1), (first, 1))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_that_goes_on_gives_the_scores_of_one_told_anew(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, steps = runner_of(saved(tmp_path, "qwen3"), dtype), Steps(monkeypatch)
    found = everything(Run(runner))
    told = steps.went_on.count(False)
    assert len(steps.went_on) - told > CHUNK, "steps went on"
    assert told <= 6, "beginnings of chunks, and changes of what runs"
    again = everything(Run(runner))  # over another cache
    monkeypatch.setattr(NativeDecodes, "goes_on", lambda *_: False)
    anew = everything(Run(runner))
    assert all(map(torch.equal, found, anew)), "kept scores are written over by no later step"
    assert all(map(torch.equal, again, anew))


def test_steps_with_guesses_go_on_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By as many tokens as came true, each number of rows for itself."""
    assembly, steps = build(save_model(tmp_path, "llama", tie_word_embeddings=True)), Steps(monkeypatch)
    params = SamplingParams(max_new_tokens=120, temperature=0.0, ignore_eos=True)
    request = GenerateRequest(rid="r", input_ids=list(range(10, 40)) * 2, params=params)
    tokens = ids(generate(assembly, [request])["r"])
    status = assembly.engine.status()
    assert status.accepted_tokens > 20
    assert steps.went_on.count(True) > status.draft_steps / 2
    monkeypatch.setattr(NativeDecodes, "goes_on", lambda *_: False)
    assert ids(generate(assembly, [request])["r"]) == tokens


def test_layers_that_see_a_part_only_are_told_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, steps = runner_of(saved(tmp_path, "mistral")), Steps(monkeypatch)
    assert runner.native_model
    assert runner.stock.layers.has_windows
    everything(Run(runner))
    assert not steps.went_on
