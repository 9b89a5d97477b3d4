"""Models with recurrent state write what transformers writes from wherever a snapshot lets them begin."""

from pathlib import Path
from typing import NamedTuple

import pytest

from nbgen.engine.assembly import Assembly
from nbgen.engine.state_pool import StatePool
from nbgen.engine.stateful_blocks import StatefulBlocks
from nbgen.messages import GenerateOutput, GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.architectures import COPIES, FAMILIES, HERE
from tests.engine.conftest import build, generate, greedy, ids
from tests.soak import seldom

NEW_TOKENS = 8
#: 96 of its tokens are in whole blocks.
SYSTEM = [10 + 7 * i % 200 for i in range(100)]
QUESTIONS = [[*SYSTEM, *range(start, start + 32 - 9 * i)] for i, start in enumerate((20, 70, 120, 170))]
CUT = [name for name in HERE if FAMILIES[name].tier == "B" and FAMILIES[name].chunked]

pytestmark = pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*", "ignore:.*fla.*")


class Served(NamedTuple):
    """A family's engine, and what transformers writes after the questions."""

    folder: Path
    assembly: Assembly
    expected: list[list[int]]


@pytest.fixture(scope="module", params=seldom(CUT, COPIES))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = save_model(tmp_path_factory.mktemp("stateful"), request.param, **FAMILIES[request.param].changes)
    assembly = build(folder, prefill_chunk=64)
    found = [answer for answer, _ in answered(assembly, QUESTIONS)]
    return Served(folder, assembly, greedy(folder, QUESTIONS, NEW_TOKENS, found))


def answered(assembly: Assembly, prompts: list[list[int]], **params: object) -> list[tuple[list[int], int]]:
    """What is written after each prompt, all at once, and how many tokens of it were cached."""
    params = {"max_new_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True, **params}
    requests = [
        GenerateRequest(rid=f"r{i}", input_ids=prompt, params=SamplingParams(**params))
        for i, prompt in enumerate(prompts)
    ]
    outputs = generate(assembly, requests)
    check_idle(assembly)
    return [answer for request in requests for answer in _samples(outputs[request.rid])]


def _samples(outputs: list[GenerateOutput]) -> list[tuple[list[int], int]]:
    samples = sorted({output.index for output in outputs})
    return [(ids(outputs, i), next(o.cached_tokens for o in outputs if o.index == i)) for i in samples]


def check_idle(assembly: Assembly) -> None:
    blocks = assembly.engine._scheduler.blocks
    assert blocks.num_free == blocks.num_blocks, "blocks leaked"
    assert sorted(blocks._slots) == list(range(assembly.engine._scheduler.max_running)), "slots leaked"


def test_a_shared_beginning_is_computed_once_and_changes_nothing(served: Served) -> None:
    assembly, expected = served.assembly, served.expected
    assembly.engine.flush_cache()
    alone = [answered(assembly, [question])[0] for question in QUESTIONS]
    assert alone == list(zip(expected, [0, 0, 96, 96], strict=True)), "the second leaves a snapshot where they part"
    assembly.engine.flush_cache()
    together = answered(assembly, QUESTIONS)
    assert together == list(zip(expected, [0, 96, 96, 96], strict=True)), "the others wait for the first"


def test_a_chat_goes_on_at_the_very_token(served: Served) -> None:
    served.assembly.engine.flush_cache()
    ((answer, _),) = answered(served.assembly, QUESTIONS[:1])
    turns = [[*QUESTIONS[0], *answer, *range(40, 52)], [*QUESTIONS[0], *answer, *range(90, 95)]]
    found, again = ([answered(served.assembly, [turn])[0] for turn in turns] for _ in range(2))
    expected = greedy(served.folder, turns, NEW_TOKENS, [answer for answer, _ in found])
    known = len(QUESTIONS[0]) + len(answer) - 1
    assert found == again == [(ids, known) for ids in expected]


def test_samples_begin_where_their_prompt_ends(served: Served) -> None:
    served.assembly.engine.flush_cache()
    whole = (len(QUESTIONS[3]) - 1) // 16 * 16
    assert answered(served.assembly, QUESTIONS[3:], n=3) == [
        (served.expected[3], cached) for cached in (0, whole, whole)
    ]


def test_who_is_preempted_writes_the_same(served: Served) -> None:
    scheduler = served.assembly.engine._scheduler
    blocks, before = scheduler.blocks, scheduler.preemptions
    # Room for two of them, but not for all that they write.
    scheduler.blocks = StatefulBlocks(18, 16, num_slots=scheduler.max_running, num_snapshots=3)
    try:
        long = answered(served.assembly, QUESTIONS, max_new_tokens=24)
        assert scheduler.preemptions > before, "there were blocks enough: nothing was tested"
    finally:
        scheduler.blocks = blocks
    assert [ids[:NEW_TOKENS] for ids, _ in long] == served.expected
    served.assembly.engine.flush_cache()
    assert [answered(served.assembly, [question], max_new_tokens=24)[0][0] for question in QUESTIONS] == [
        ids for ids, _ in long
    ]


def test_who_is_taken_back_goes_on_from_its_last_state(served: Served) -> None:
    engine, admission = served.assembly.engine, served.assembly.admission
    engine.flush_cache()
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    requests = [GenerateRequest(rid=f"r{i}", input_ids=ids, params=params) for i, ids in enumerate(QUESTIONS)]
    sequences = [sequence for request in requests for sequence in admission.sequences(request)]
    for sequence in sequences:
        engine.add([sequence])
    while engine.has_work:
        engine.step()
        if engine.steps % 3 == 0:
            engine.pause("retract")
            engine.resume()
    assert [sequence.output_ids for sequence in sequences] == served.expected
    check_idle(served.assembly)


def test_a_model_that_goes_on_differently_from_a_copied_state_reuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path, "lfm2", **FAMILIES["lfm2"].changes)
    monkeypatch.setattr(StatePool, "load", lambda *_: None)
    assembly = build(folder)
    assert (assembly.model.tier, assembly.model.caches_prefixes) == ("B", False)
    expected = greedy(folder, QUESTIONS[:1], NEW_TOKENS)[0]
    assert [answered(assembly, QUESTIONS[:1]) for _ in range(2)] == [[(expected, 0)]] * 2
