"""One sequence at a time through transformers' own cache: a prompt's scores are kept where anybody wants them."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine.assembly import Assembly
from nbgen.engine.detokenizer import Detokenizer, StopStrings
from nbgen.engine.opaque_runner import OpaqueRunner
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.sequence import Sequence
from nbgen.engine_config import BLOCK_SIZE
from nbgen.errors import InvalidRequest, ModelError
from nbgen.messages import GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, greedy, ids

PROMPTS = [list(range(5, 45)), list(range(60, 90))]
NEW_TOKENS = 20
#: Of the model's keys and values, in float32: two layers of 64 numbers each.
TOKEN_BYTES = 2 * 2 * 64 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("opaque"), "bloom", **FAMILIES["bloom"].changes)


@pytest.fixture(scope="module")
def model(folder: Path) -> torch.nn.Module:
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


def held_bytes(assembly: Assembly) -> int:
    """Of the keys and values of all sequences."""
    layers = [layer for cache in assembly.engine._runner._caches.values() for layer in cache.layers]
    return sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))


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


def test_its_caches_are_kept_within_the_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = 5 * BLOCK_SIZE * TOKEN_BYTES
    assembly, held = build(folder, kv_cache_bytes=budget), []
    step = assembly.engine.step
    monkeypatch.setattr(assembly.engine, "step", lambda: (step(), held.append(held_bytes(assembly)))[0])
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
    requests = [GenerateRequest(rid=str(rid), input_ids=prompt, params=params) for rid, prompt in enumerate(PROMPTS)]
    outputs = generate(assembly, requests)
    assert [ids(outputs[request.rid]) for request in requests] == greedy(folder, PROMPTS, NEW_TOKENS)
    assert assembly.engine.status().preemptions, "there was room enough: nothing was tested"
    assert 0 < max(held) <= budget
    assert held[-1] == 0, "nothing of those that ended is kept"


def test_what_it_holds_is_told_and_a_longer_prompt_refused(folder: Path) -> None:
    assembly = build(folder, kv_cache_bytes=2 * BLOCK_SIZE * TOKEN_BYTES)
    assert assembly.model.kv_tokens == 2 * BLOCK_SIZE
    with pytest.raises(InvalidRequest, match=r"context length is 32 tokens here, .* the prompt has 40 tokens"):
        assembly.admission.sequences(GenerateRequest(rid="long", input_ids=PROMPTS[0]))


def test_a_budget_that_holds_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="raise kv_cache_bytes"):
        build(folder, kv_cache_bytes=TOKEN_BYTES)


def test_states_are_counted_beside_what_grows(tmp_path: Path) -> None:
    family = save_model(tmp_path, "zamba", **FAMILIES["zamba"].changes)
    layers, inner, states, kernel = 4, 2 * 64, 8, 4
    state = layers * inner * (states + kernel) * 4
    assembly = build(family, kv_cache_bytes=5 * state)
    assert assembly.engine._runner.bytes_per_state == state
    assert assembly.model.max_running == 2, "their states take half of it at most"
    assert not assembly.model.cuts_prompts
    assert assembly.model.kv_tokens == 3 * state // (TOKEN_BYTES * 2 * BLOCK_SIZE) * BLOCK_SIZE
