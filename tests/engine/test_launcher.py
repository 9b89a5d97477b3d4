"""With lookahead the engine writes what it writes without, whatever joins, ends, gives way or fails meanwhile."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from nbgen.engine import grammar_masks
from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateOutput, GenerateRequest, LogprobOptions
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import Outputs, build, constrain, generate, ids, text
from tests.engine.disturbances import DISTURBANCES, disarm
from tests.engine.test_cuda_graphs import with_graphs
from tests.engine.test_grammar import constrained

pytestmark = pytest.mark.usefixtures("little_garbage")

PROMPT = list(range(10, 40))
UNINSTALLED = ("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*", "ignore:.*fla.*")


def looking_ahead(folder: Path, **changes: object) -> Assembly:
    assembly = build(folder, draft_tokens=0, **changes)  # as on a GPU: what is guessed after a token must know it
    assembly.engine._launcher.lookahead = True
    return assembly


@pytest.fixture(scope="module")
def ahead(tiny_model: Path) -> Assembly:
    """One that looks ahead, with so few blocks that sequences give way."""
    layers, keys_and_values, block_size, heads, head_dim, float32 = 2, 2, 16, 2, 16, 4
    block = layers * keys_and_values * block_size * heads * head_dim * float32
    return looking_ahead(tiny_model, kv_cache_bytes=12 * block)


def request(rid: str, prompt: list[int] = PROMPT, **options: Any) -> GenerateRequest:
    fields = {name: options.pop(name) for name in ("logprobs", "tensors", "adapter", "words") if name in options}
    params = SamplingParams(**{"max_new_tokens": 24, "temperature": 0.0, "ignore_eos": True, **options})
    return GenerateRequest(rid=rid, input_ids=prompt, params=params, **fields)


def answers(outputs: Outputs) -> dict[tuple[str, int], tuple]:
    """Of every sequence: its tokens, its text, why it ended, and what it counted."""
    found = {}
    for rid, each in outputs.items():
        for index in {output.index for output in each}:
            last = [output for output in each if output.index == index][-1]
            found[rid, index] = (
                ids(each, index),
                text(each, index),
                last.finish_reason,
                last.completion_tokens,
            )
    return found


def values(outputs: list[GenerateOutput], index: int) -> np.ndarray:
    """All numbers that a sequence was given besides its tokens."""
    mine = [output for output in outputs if output.index == index]
    described = [each for output in mine for each in (*output.prompt_logprobs, *output.logprobs)]
    numbers = [entry[0] for each in described for entry in (each.token, *(each.top or ())) if entry[0] is not None]
    tensors = [np.frombuffer(piece.data, np.float32) for output in mine for piece in output.tensors]
    return np.concatenate([np.array(numbers, np.float32), *tensors])


def check_idle(assembly: Assembly) -> None:
    engine = assembly.engine
    status = engine.status()
    assert (status.running, status.waiting, engine.has_work) == (0, 0, False)
    assert status.blocks_free == status.blocks_total, "blocks leaked"
    assert engine._launcher.ahead is None, "what was launched ahead is still held"


def drive(
    assembly: Assembly,
    arrivals: list[tuple[GenerateRequest, int]],
    aborts: dict[int, str],
    disturbances: Mapping[int, str] = MappingProxyType({}),
) -> Outputs:
    """Let the requests arrive and be aborted, and whatever else happens, before the steps that are said."""
    engine = assembly.engine
    outputs: Outputs = {each.rid: [] for each, _ in arrivals}
    for step in range(3000):
        new: list[GenerateOutput] = []
        for each, when in arrivals:
            if when == step:
                sequences = assembly.admission.sequences(each)
                constrain(assembly, sequences)
                new += engine.add(sequences)
        new += engine.abort(aborts[step]) if step in aborts else []
        new += DISTURBANCES[disturbances[step]](assembly) if step in disturbances else []
        if engine.has_work:
            new += engine.step()
        elif step > 60:
            disarm(assembly)
            return outputs
        for output in new:
            outputs[output.rid].append(output)
    raise AssertionError("the schedule never ends")


def test_the_next_forward_is_launched_before_the_host_knows_a_token(ahead: Assembly) -> None:
    for each in (request("a"), request("b", [7, 8])):
        ahead.engine.add(ahead.admission.sequences(each))
    ahead.engine.step()
    for count in range(2, 6):
        outputs = ahead.engine.step()
        assert {output.completion_tokens for output in outputs} == {count}
        launched = ahead.engine._launcher.ahead.sampled
        assert {each.rid for each in launched} == {"a", "b"}
        assert all(each.num_uncomputed == 0 for each in launched), "the last token, which just came, is being computed"
    for rid in ("a", "b"):
        (last,) = ahead.engine.abort(rid)
        assert last.completion_tokens == 5
    check_idle(ahead)


def test_numbers_of_a_prompt_come_before_the_next_forward(ahead: Assembly) -> None:
    engine = ahead.engine
    engine.flush_cache()
    engine.add(ahead.admission.sequences(request("a", max_new_tokens=40)))
    for _ in range(3):
        engine.step()
    engine.add(ahead.admission.sequences(request("b", logprobs=LogprobOptions(start=0))))
    launched = []
    for _ in range(4):
        outputs = engine.step()
        launched.append((any(output.prompt_logprobs for output in outputs), engine._launcher.ahead is not None))
    assert launched == [(False, True), (True, False), (False, True), (False, True)]
    for rid in ("a", "b"):
        engine.abort(rid)
    check_idle(ahead)


def test_no_row_is_wasted_where_the_end_is_known(ahead: Assembly) -> None:
    sizes: list[int] = []
    run = ahead.engine._runner.run
    ahead.engine._runner.run = lambda batch, *rest: sizes.append(len(batch)) or run(batch, *rest)
    try:
        generate(ahead, [request(f"w{i}", [50 + i], max_new_tokens=i) for i in (2, 4, 7)])
    finally:
        ahead.engine._runner.run = run
    assert sum(sizes) == 2 + 4 + 7


def test_what_a_wasted_row_computed_serves_only_the_same_tokens(ahead: Assembly, tiny_engine: Assembly) -> None:
    expected = ids(generate(tiny_engine, [request("a")])["a"])
    stop = next(token for i, token in enumerate(expected) if i >= 3 and token not in expected[:i])
    (outputs,) = generate(ahead, [request("a", stop_token_ids=(stop,), ignore_eos=False)]).values()
    assert ids(outputs) == expected[: expected.index(stop) + 1]
    check_idle(ahead)
    for follows in ([stop, 30, 31], [31, 30]):
        longer = [*PROMPT, *ids(outputs)[:-1], *follows]
        (got,), (want,) = (generate(assembly, [request("b", longer)]).values() for assembly in (ahead, tiny_engine))
        assert ids(got) == ids(want)
        assert got[0].cached_tokens >= len(PROMPT)


def test_sequences_give_way_and_go_on(ahead: Assembly, tiny_engine: Assembly) -> None:
    requests = [request(f"r{i}", [20 + i] * 30, max_new_tokens=40) for i in range(6)]
    before = ahead.engine.status().preemptions
    assert answers(generate(ahead, requests)) == answers(generate(tiny_engine, requests))
    assert ahead.engine.status().preemptions > before, "there were blocks enough: nothing was tested"
    check_idle(ahead)


def test_nobody_gives_way_for_one_that_just_ends(ahead: Assembly, tiny_engine: Assembly) -> None:
    """Two have all blocks; one ends with its seventh token, after which the other needs one more."""
    options: dict[str, Any] = {"temperature": 2.0, "sampling_seed": 3}
    whole = ids(generate(tiny_engine, [request("a", [20] * 88, **options)])["a"])
    assert whole[6] not in whole[:6]
    requests = [
        request("a", [20] * 88, stop_token_ids=(whole[6],), ignore_eos=False, **options),
        request("b", [21] * 90),
    ]
    before = ahead.engine.status().preemptions
    ahead.engine.flush_cache()
    assert answers(generate(ahead, requests)) == answers(generate(tiny_engine, requests))
    assert ahead.engine.status().preemptions == before
    check_idle(ahead)


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_a_pause_between_launch_and_sampling(mode: str, ahead: Assembly, tiny_engine: Assembly) -> None:
    expected = ids(generate(tiny_engine, [request("a")])["a"])
    engine = ahead.engine
    engine.add(ahead.admission.sequences(request("a")))
    outputs = engine.step() + engine.step() + engine.pause(mode)
    assert (engine._launcher.ahead is None) == (mode != "in_place"), "what is computed anew is not sampled before"
    engine.flush_cache()
    assert not engine.has_work
    engine.resume()
    while engine.has_work:
        outputs += engine.step()
    assert ids(outputs) == (expected[:2] if mode == "abort" else expected)
    check_idle(ahead)


def test_memory_is_released_between_launch_and_sampling(tiny_model: Path, tiny_engine: Assembly) -> None:
    assembly = looking_ahead(tiny_model)
    assembly.engine.add(assembly.admission.sequences(request("a")))
    assembly.engine.step()
    assert assembly.engine._launcher.ahead is not None
    (last,) = assembly.occupation.release({"kv_cache"})
    assert last.finish_reason.status == 503
    assembly.occupation.resume({"kv_cache"})
    assert answers(generate(assembly, [request("a")])) == answers(generate(tiny_engine, [request("a")]))
    check_idle(assembly)


def test_grammars_beside_free_rows(tiny_model: Path) -> None:
    plain, assembly = build(tiny_model), looking_ahead(tiny_model)
    requests = [request(f"r{i}", temperature=1.0, sampling_seed=i) for i in range(2)] + [
        request(f"g{i}", regex="[ab]{3,9}|no", temperature=1.0, sampling_seed=i, ignore_eos=False) for i in range(4)
    ]
    try:
        assert answers(constrained(assembly, *requests)) == answers(constrained(plain, *requests))
    finally:
        plain.close()
        assembly.close()


def test_grammars_need_no_kernels_on_a_gpu(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = grammar_masks._backend
    chosen = []

    def as_on_a_gpu(_: torch.device) -> str:
        chosen.append(backend(torch.device("cuda")))
        return chosen[-1]

    monkeypatch.setattr(grammar_masks, "has_kernels", lambda _: False)
    requests = [request("free"), request("g", regex="[ab]{3,9}|no", ignore_eos=False)]
    expected, assembly = constrained(build(tiny_model), *requests), looking_ahead(tiny_model)
    monkeypatch.setattr(grammar_masks, "_backend", as_on_a_gpu)
    assert answers(constrained(assembly, *requests)) == answers(expected)
    assert set(chosen) == {"torch_native"}


def test_a_sequence_without_a_token_fails_alone(ahead: Assembly, tiny_engine: Assembly) -> None:
    bias = dict.fromkeys(range(ahead.model.vocab_size), float("-inf"))
    outputs = generate(ahead, [request("bad", [5, 6], logit_bias=bias), request("good")])
    assert outputs["bad"][-1].finish_reason.type == "error"
    assert ids(outputs["good"]) == ids(generate(tiny_engine, [request("good")])["good"])
    check_idle(ahead)


def test_padded_decodes_over_static_tensors(tiny_model: Path, tiny_engine: Assembly) -> None:
    requests = [request(f"r{i}", PROMPT[i:], max_new_tokens=8 + 3 * i) for i in range(5)]
    requests.append(request("s", temperature=1.3, sampling_seed=9, stop_token_ids=tuple(range(90)), ignore_eos=False))
    requests.append(request("l", PROMPT[9:], max_new_tokens=3, logprobs=LogprobOptions(top=2)))
    assembly = looking_ahead(tiny_model)
    graphs = with_graphs(assembly)
    outputs, expected = generate(assembly, requests), generate(tiny_engine, requests)
    assert answers(outputs) == answers(expected)
    np.testing.assert_allclose(values(outputs["l"], 0), values(expected["l"], 0), atol=1e-3)
    assert len(graphs._graphs) > 2
    check_idle(assembly)


def test_a_prompt_s_last_pieces_of_one_token_beside_decodes_in_a_graph(tiny_model: Path, tiny_engine: Assembly) -> None:
    """Where rows of its logprobs stand behind the tokens that the graph finds."""
    requests = [
        request("stream", PROMPT[:1], max_new_tokens=40),
        request("lp", PROMPT[:10], max_new_tokens=3, logprobs=LogprobOptions(start=0)),
    ]
    assembly = looking_ahead(tiny_model, prefill_chunk=1)
    with_graphs(assembly)
    outputs, expected = generate(assembly, requests), generate(tiny_engine, requests)
    assert answers(outputs) == answers(expected)
    np.testing.assert_allclose(values(outputs["lp"], 0), values(expected["lp"], 0), atol=1e-3)
    check_idle(assembly)


@pytest.mark.filterwarnings(*UNINSTALLED)
@pytest.mark.parametrize("model_type", ["falcon_h1", "qwen3_next", "bloom"])
def test_states_and_caches_of_other_kinds(model_type: str, tmp_path: Path) -> None:
    """A wasted row writes to a state that its sequence has given back: others begin anew, or from all of its tokens."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    plain, assembly = build(folder), looking_ahead(folder, max_running=3)
    whole = generate(plain, [request(f"r{i}", PROMPT[i:]) for i in range(8)])
    requests = [
        request(f"r{i}", PROMPT[i:], stop_token_ids=(ids(whole[f"r{i}"])[3 + i],) if i % 2 else (), ignore_eos=False)
        for i in range(8)
    ]
    expected = answers(generate(plain, requests))
    assert {reason.type for _, _, reason, _ in expected.values()} == {"stop", "length"}
    arrivals = [(each, 2 * i) for i, each in enumerate(requests)]
    assert answers(drive(assembly, arrivals, {})) == expected
    longer = [request(f"r{i}", [*PROMPT[i:], *expected[f"r{i}", 0][0], 50 + i], max_new_tokens=9 + i) for i in range(8)]
    outputs = generate(assembly, longer)
    assert answers(outputs) == answers(generate(plain, longer))
    reused = [each[0].cached_tokens == each[0].prompt_tokens - 1 for each in outputs.values()]
    assert any(reused) == (FAMILIES[model_type].tier == "B"), "nobody began where a wasted row had ended"
    check_idle(assembly)
