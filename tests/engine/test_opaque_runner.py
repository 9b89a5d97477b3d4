"""One sequence at a time through transformers' own cache: a prompt's scores are kept where anybody wants them."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.opaque_runner import OpaqueRunner
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from nbgen.messages import LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES

PROMPTS = [list(range(5, 45)), list(range(60, 90))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    folder = save_model(tmp_path_factory.mktemp("opaque"), "bloom", **FAMILIES["bloom"].changes)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(params=["it picks the rows", "it cannot"])
def runner(request: pytest.FixtureRequest, model: torch.nn.Module) -> OpaqueRunner:
    """Of a model that computes the wanted scores alone, or of one that always computes all."""
    runner = OpaqueRunner(model)
    runner._keeps_logits = request.param == "it picks the rows"
    return runner


def sequence(prompt: list[int], **options: object) -> Sequence:
    nothing = Detokenizer(lambda _: "", lambda _: False, [])
    found = Sequence("r", 0, prompt, SamplingParams(), 1, 0, nothing, StopStrings(()))
    found.logprobs = LogprobOptions(**options) if options else None
    return found


def expected(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0]


def test_scores_that_nobody_wants_are_let_go(runner: OpaqueRunner) -> None:
    (vocab,) = expected(runner.model, PROMPTS[0])[-1].shape
    with torch.inference_mode():
        kept = runner._scores(sequence(PROMPTS[0]), known=0, first=len(PROMPTS[0]) - 1)
    assert kept.untyped_storage().nbytes() == vocab * kept.element_size()


def test_a_prompt_s_scores_are_those_that_were_asked_for(runner: OpaqueRunner) -> None:
    batch = [sequence(PROMPTS[0]), sequence(PROMPTS[1], start=8)]
    output = runner.run([ScheduledSequence(each, each.num_uncomputed) for each in batch])
    whole = [expected(runner.model, prompt) for prompt in PROMPTS]
    torch.testing.assert_close(output.scores, torch.stack([rows[-1] for rows in whole]))
    ((described, position, scores, _),) = output.prompt
    assert (described, position) == (batch[1], 8)
    torch.testing.assert_close(scores, whole[1][8:-1])


def test_a_cache_that_is_not_used_changes_no_row(model: torch.nn.Module) -> None:
    anew = OpaqueRunner(model, cached=False)
    grown = sequence(PROMPTS[0])
    grown.num_computed = len(PROMPTS[0])
    grown.append(7)
    output = anew.run([ScheduledSequence(grown, 1)])
    torch.testing.assert_close(output.scores[0], expected(model, [*PROMPTS[0], 7])[-1])
    assert not output.prompt
