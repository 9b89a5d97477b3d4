"""With lookahead the engine writes what it writes without, whatever joins, ends, gives way or fails meanwhile."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbgen.engine import grammar_masks
from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateOutput, GenerateRequest, LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams
from nbgen.word_lists import WordLists
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import Outputs, build, constrain, generate, ids, text
from tests.engine.disturbances import DISTURBANCES, disarm
from tests.engine.test_cuda_graphs import with_graphs
from tests.engine.test_grammar import constrained
from tests.soak import TIMES

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


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.5, "sampling_seed": 1},
    {"temperature": 1.2, "top_p": 0.9, "sampling_seed": 2},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.02, "sampling_seed": 3, "n": 2},
    {"frequency_penalty": 1.5, "min_new_tokens": 5},
    {"stop_token_ids": tuple(range(4, 60)), "ignore_eos": False},
    {"temperature": 1.5, "sampling_seed": 4, "stop": ("a", "e", "\n", "1")},
    {"logprobs": LogprobOptions(top=2)},
    {"logprobs": LogprobOptions(start=0)},
    {"tensors": TensorOptions(generation_logits=True, last_hidden_state=True)},
    {"regex": "([a-f]{3,9} )+", "temperature": 1.0, "sampling_seed": 5, "ignore_eos": False},
    {"json_schema": '{"enum": ["same", "again"]}', "ignore_eos": False},
    {"adapter": "a"},
    {"adapter": "a", "temperature": 1.0, "sampling_seed": 6, "words": WordLists(bad=("ab", "e"))},
    {"stop_regex": ("[a-z][0-9]",), "temperature": 1.5, "sampling_seed": 7},
]

requests_strategy = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 60), st.lists(st.integers(20, 22), min_size=1, max_size=4)).map(
            lambda parts: [*range(100, 100 + parts[0]), *parts[1]]
        ),
        st.integers(0, 20),
        st.sampled_from(OPTIONS),
        st.integers(0, 25),
        st.one_of(st.none(), st.none(), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=8,
)


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


class Pair(NamedTuple):
    """An engine that looks ahead, and one that does not; whether the first is to run its decodes in graphs."""

    ahead: Assembly
    plain: Assembly
    graphs: bool


@pytest.fixture(scope="module", params=["llama", "llama in graphs", "falcon_h1"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both with an adapter; the one that looks ahead with few blocks and snapshots."""
    family, _, graphs = request.param.partition(" ")
    folder = save_model(tmp_path_factory.mktemp("pair"), family, **FAMILIES[family].changes)
    adapter = save_adapter(tmp_path_factory.mktemp("adapter"), folder, target_modules=["q_proj", "v_proj"])
    plain = build(folder)
    runner = plain.engine._runner
    few = 6 * runner.bytes_per_state + 20 * runner.cache.bytes_per_block
    ahead = looking_ahead(folder, max_running=6, kv_cache_bytes=few)
    ahead.engine._scheduler.blocks.worth = 16
    for assembly in (ahead, plain):
        assembly.engine.install(assembly.adapters.load("a", str(adapter)))
    yield Pair(ahead, plain, bool(graphs))
    for assembly in (ahead, plain):
        assembly.close()


@pytest.mark.filterwarnings(*UNINSTALLED, "ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it
@settings(max_examples=15 * TIMES)
@given(
    schedule=requests_strategy,
    disturbances=st.dictionaries(st.integers(0, 40), st.sampled_from([*DISTURBANCES]), max_size=3),
)
def test_random_schedules_give_what_they_give_without(pair: Pair, schedule: list, disturbances: dict[int, str]) -> None:
    ahead, plain, graphs = pair
    if graphs:
        with_graphs(ahead)
    requests = [
        request(f"r{i}", p, max_new_tokens=new, **options) for i, (p, new, options, _, _) in enumerate(schedule)
    ]
    without = constrained(plain, *requests)
    expected = answers(without)
    arrivals = [(each, when) for each, (_, _, _, when, _) in zip(requests, schedule, strict=True)]
    aborts = {when: f"r{i}" for i, (_, _, _, _, when) in enumerate(schedule) if when is not None}
    before = ahead.engine.generated_tokens
    outputs = drive(ahead, arrivals, aborts, disturbances)
    got = answers(outputs)
    for (rid, index), (tokens, words, reason, count) in got.items():
        whole = expected[rid, index]
        if reason.type == "abort":
            assert tokens == whole[0][:count]
            assert whole[1].startswith(words.rstrip("\ufffd")), "but for half a character at its end"
        else:
            assert (tokens, words, reason, count) == whole
            np.testing.assert_allclose(values(outputs[rid], index), values(without[rid], index), atol=1e-3)
    assert ahead.engine.generated_tokens - before == sum(len(answer[0]) for answer in got.values())
    check_idle(ahead)


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


@pytest.mark.filterwarnings(*UNINSTALLED)
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "falcon_h1"])
def test_steps_for_which_there_is_no_memory_are_made_smaller(
    lookahead: bool, model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's text changes; cached prefixes that were never computed are not believed."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    requests = [request(str(i), list(range(10 + i, 210 + i)), logprobs=LogprobOptions()) for i in range(3)]
    requests.append(request("part", list(range(10, 150))))
    expected = answers(generate(build(folder), requests))
    assembly = build(folder, prefill_chunk=512, draft_tokens=0)
    assembly.engine._launcher.lookahead = lookahead
    runner, seen = assembly.engine._runner, []
    keep = runner.run

    def run(batch: list, *rest: Any) -> Any:
        seen.append(sum(item.num_tokens for item in batch))
        if seen[-1] > 140 or len(seen) == 20:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return keep(batch, *rest)

    generate(assembly, [request("before", list(range(10, 140)))])
    monkeypatch.setattr(runner, "run", run)
    assert answers(generate(assembly, requests)) == expected
    assert max(seen) > 256, "no step was too large: nothing was tested"
    assert len(seen) > 20
    status = assembly.engine.status()
    assert status.blocks_free == status.blocks_total


def gpu_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def machine_full() -> None:
    torch.empty(2**50)


@pytest.mark.parametrize("full", [gpu_full, machine_full])
def test_a_request_for_which_there_is_never_memory_ends_alone(
    full: Callable[[], None], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = build(tiny_model, prefill_chunk=64, max_running=3)
    runner, keep = assembly.engine._runner, assembly.engine._runner.run
    fits = generate(assembly, [request("fits")])

    def run(batch: list, *rest: Any) -> Any:
        if any(item.sequence.rid == "large" for item in batch):
            full()
        return keep(batch, *rest)

    monkeypatch.setattr(runner, "run", run)
    later = [request(f"later{i}") for i in range(4)]
    found = generate(assembly, [request("fits"), request("large"), *later])
    assert {rid: ids(outputs) for rid, outputs in found.items() if rid != "large"} == dict.fromkeys(
        ("fits", *(each.rid for each in later)), ids(fits["fits"])
    )
    reason = found["large"][-1].finish_reason
    assert (reason.type, reason.status, "memory" in reason.message) == ("error", 503, True)


@pytest.mark.filterwarnings(*UNINSTALLED)
@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("model_type", ["bitnet", "mamba2", "bloom"])
def test_who_makes_the_model_fail_ends_alone(lookahead: bool, model_type: str, tmp_path: Path) -> None:
    """One of each tier. By their prompts, or by a token that comes in the middle of an answer."""
    folder = save_model(tmp_path, model_type, **FAMILIES[model_type].changes)
    sampled = {"temperature": 1.0, "sampling_seed": 1}
    others = [request("good", n=2, **sampled), request("long", PROMPT * 4, **sampled)]
    late = request("late", [7, 8, 9], **sampled)
    assembly = build(folder, prefill_chunk=64)
    expected = answers(generate(assembly, [*others, late]))
    written = expected.pop(("late", 0))[0]
    theirs = {*PROMPT, *(token for tokens, *_ in expected.values() for token in tokens)}
    at = max(written.index(token) for token in written if token not in theirs)
    alien = next(token for token in range(100, 256) if token not in {*theirs, *written})
    bad = request("bad", [*range(60, 90), alien, 5, 6])
    fails = []

    def look(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if {alien, written[at]} & set(arguments[0].flatten().tolist()):
            fails.append(arguments[0].numel())
            raise IndexError("no such expert")

    assembly.engine.flush_cache()
    assembly.engine._launcher.lookahead = lookahead
    assembly.engine._runner.model.get_input_embeddings().register_forward_pre_hook(look)
    found = answers(outputs := generate(assembly, [*others, late, bad]))
    for rid in ("bad", "late"):
        reason = outputs[rid][-1].finish_reason
        assert (reason.type, reason.status, "the model fails" in reason.message) == ("error", 500, True)
    assert [found.pop((rid, 0))[0] for rid in ("bad", "late")] == [[], written[: at + 1]]
    assert found == expected
    assert len(fails) >= 4, "nobody failed with others and then alone"
    check_idle(assembly)


def test_a_model_that_fails_at_everybody_answers_everybody(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = build(tiny_model)
    keep = assembly.engine._runner.run

    def run(*_: Any) -> None:
        raise KeyError("layers")

    with monkeypatch.context() as patch:
        patch.setattr(assembly.engine._runner, "run", run)
        outputs = generate(assembly, [request(str(i), list(range(10, 20 + i))) for i in range(3)])
    assert [output.finish_reason.status for each in outputs.values() for output in each] == [500] * 3
    assert assembly.engine._runner.run == keep
    assert len(ids(generate(assembly, [request("then")])["then"])) == 24
    check_idle(assembly)
