"""Recurrent state follows its sequence: through preemption, abort, and slots that others had before."""

from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nbgen.engine import prompt_embeds
from nbgen.engine.assembly import Assembly
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.messages import GenerateRequest, LogprobOptions, Tensor, TensorOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build, generate, ids

PARAMS = SamplingParams(max_new_tokens=24, temperature=0.0, ignore_eos=True)
REQUESTS = [
    GenerateRequest(rid=f"r{i}", input_ids=list(range(10, 10 + length)), params=PARAMS)
    for i, length in enumerate((30, 7, 1, 19))
]

pytestmark = pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*", "ignore:.*fla.*")


@pytest.fixture(scope="module", params=["falcon_h1", "qwen3_next", "jamba"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("hybrid"), request.param, **FAMILIES[request.param].changes)


def answers(assembly: Assembly, requests: list[GenerateRequest]) -> list[list[int]]:
    outputs = generate(assembly, requests)
    return [ids(outputs[request.rid]) for request in requests]


def test_preemption_changes_no_text(folder: Path) -> None:
    assembly = build(folder)
    expected = answers(assembly, REQUESTS)
    assembly.engine._scheduler.blocks = StatefulBlocks(6, 16, num_slots=4)
    assert answers(assembly, REQUESTS) == expected
    assert assembly.engine.status().preemptions > 0, "there were blocks enough: nothing was tested"


def test_states_have_room_beside_the_blocks(folder: Path) -> None:
    assembly = build(folder)
    state, blocks = assembly.engine._runner.bytes_per_state, assembly.engine._scheduler.blocks
    assert blocks.cache.snapshots.size == (blocks.num_blocks // 8 if assembly.model.caches_prefixes else 0)
    assembly = build(folder, kv_cache_bytes=7 * state)
    scheduler, runner = assembly.engine._scheduler, assembly.engine._runner
    assert scheduler.max_running == 3, "as many as half of the bytes hold states of"
    snapshots = scheduler.blocks.cache.snapshots.size
    assert snapshots <= 1, "no more than a quarter of what is left"
    answers(assembly, REQUESTS)
    assert (3 + snapshots) * state + runner.cache.num_blocks * runner.cache.bytes_per_block <= 7 * state


def test_slots_come_back_and_serve_others(folder: Path) -> None:
    """Also those who want to know their experts, which transformers' code tells: in C++ others go on beside them."""
    assembly = build(folder)
    alone = [answers(assembly, [request])[0] for request in REQUESTS]
    first = [assembly.admission.sequences(request) for request in REQUESTS]
    for sequences in first:
        assembly.engine.add(sequences)
    assembly.engine.step()
    assembly.engine.step()
    for rid in ("r0", "r2"):
        assert assembly.engine.abort(rid)[0].finish_reason.type == "abort"
    experts = TensorOptions(routed_experts=0) if assembly.model.routed_experts else None
    asked = [msgspec.structs.replace(REQUESTS[i], tensors=experts) for i in (0, 2)]
    again = [assembly.admission.sequences(request) for request in asked]
    for sequences in again:
        assembly.engine.add(sequences)
    while assembly.engine.has_work:
        assembly.engine.step()
    assert [sequences[0].output_ids for sequences in again] == [alone[0], alone[2]]
    assert [sequences[0].output_ids for sequences in first[1::2]] == [alone[1], alone[3]]
    scheduler, pool = assembly.engine._scheduler, assembly.engine._runner.pool
    assert sorted(scheduler.blocks._slots) == list(range(scheduler.max_running)), "all slots are free again"
    assert all(len(states) <= 2 * len(REQUESTS) for states in pool._states.values()), "few slots are ever touched"


def test_who_begins_in_the_place_of_one_that_has_just_ended_begins_anew(folder: Path) -> None:
    """Also with a prompt of one token, whose step looks like that one's next beside somebody who goes on."""
    assembly = build(folder, draft_tokens=0)
    engine, one = assembly.engine, REQUESTS[2]
    short = msgspec.structs.replace(REQUESTS[1], params=msgspec.structs.replace(PARAMS, max_new_tokens=4))
    alone, _ = answers(assembly, [one]), answers(assembly, [short])  # again, it leaves nothing new to be cached
    for each in (REQUESTS[0], short):
        engine.add(assembly.admission.sequences(each))
    while short.rid in engine.sequences:
        engine.step()
    (begins,) = assembly.admission.sequences(one)
    engine.add([begins])
    while engine.has_work:
        engine.step()
    assert [begins.output_ids] == alone


def test_states_are_given_back_and_taken_again(folder: Path) -> None:
    assembly = build(folder)
    expected = answers(assembly, REQUESTS)
    runner = assembly.engine._runner
    state = runner.bytes_per_state
    assembly.occupation.release({"kv_cache"})
    assert all(len(states) == 0 for states in runner.pool._states.values())
    assert not runner.pool._snapshots
    assembly.occupation.resume({"kv_cache"})
    assert runner.bytes_per_state == state
    assert assembly.engine.status().snapshots_kept == 0
    assert answers(assembly, REQUESTS) == expected


def test_ids_beside_embeddings_count_as_much_as_alone() -> None:
    config = AutoConfig.for_model(
        "falcon_h1", vocab_size=64, hidden_size=64, num_hidden_layers=1, mamba_d_ssm=128, embedding_multiplier=5.0
    )
    model, tokens = AutoModelForCausalLM.from_config(config).eval(), torch.arange(8)[None]
    given = Tensor(name="", datatype="FP32", shape=(3, 64), data=memoryview(bytes(4 * 3 * 64)))
    embedded = prompt_embeds.fill(model, tokens, given, known=3)  # behind all that is given
    with torch.no_grad():
        assert torch.equal(model(inputs_embeds=embedded).logits, model(input_ids=tokens).logits)


def test_what_begins_anew_with_every_chunk_reuses_nothing(folder: Path) -> None:
    assembly = build(folder)
    assert assembly.model.caches_prefixes == assembly.engine._scheduler.cuts_prompts
    outputs = [generate(assembly, REQUESTS[:1])["r0"] for _ in range(2)]
    assert ids(outputs[0]) == ids(outputs[1])
    assert [each[-1].cached_tokens for each in outputs] == [0, 0], "a prompt too short to be cut"
    status = assembly.engine.status()
    assert {bool(status.blocks_cached), bool(status.snapshots_total), bool(status.snapshots_kept)} == {
        assembly.model.caches_prefixes
    }


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba"])
def test_a_state_that_begins_anew_is_noticed_however_little_it_does(name: str, tmp_path: Path) -> None:
    folder = save_model(tmp_path, name, **FAMILIES[name].changes)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data *= 0.3  # about as an initializer has them
    model.save_pretrained(folder)
    assembly = build(folder, prefill_chunk=16)
    assert not assembly.engine._scheduler.cuts_prompts
    prompt = torch.randint(10, 200, (100,), generator=torch.Generator().manual_seed(0))
    options = LogprobOptions(start=0)
    request = GenerateRequest(rid="r", input_ids=prompt.tolist(), params=PARAMS, logprobs=options)
    got = [each.token[0] for each in generate(assembly, [request])["r"][0].prompt_logprobs[1:]]
    with torch.inference_mode():
        scores = model(prompt[None], use_cache=False).logits[0].log_softmax(-1)
    expected = scores[:-1].gather(1, prompt[1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(got), expected, atol=1e-4, rtol=1e-4)
