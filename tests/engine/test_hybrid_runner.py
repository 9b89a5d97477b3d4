"""Recurrent state follows its sequence: through preemption, abort, and slots that others had before."""

from pathlib import Path

import pytest

from nbgen.engine.assembly import Assembly
from nbgen.messages import GenerateRequest
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
    roomy = build(folder)
    expected = answers(roomy, REQUESTS)
    cramped = build(folder, kv_cache_bytes=6 * roomy.engine._runner.cache.bytes_per_block)
    assert answers(cramped, REQUESTS) == expected
    assert cramped.engine.status().preemptions > 0, "the pool was large enough: nothing was tested"


def test_slots_come_back_and_serve_others(folder: Path) -> None:
    assembly = build(folder)
    alone = [answers(assembly, [request])[0] for request in REQUESTS]
    for request in REQUESTS:
        assembly.engine.add(assembly.admission.sequences(request))
    assembly.engine.step()
    assembly.engine.step()
    for rid in ("r0", "r2"):
        assert assembly.engine.abort(rid)[0].finish_reason.type == "abort"
    again = [assembly.admission.sequences(REQUESTS[i]) for i in (0, 2)]
    for sequences in again:
        assembly.engine.add(sequences)
    while assembly.engine.has_work:
        assembly.engine.step()
    assert [sequences[0].output_ids for sequences in again] == [alone[0], alone[2]]
    runner = assembly.engine._runner
    assert sorted(runner._free) == list(range(len(REQUESTS))), "as many slots as ran at once, all free again"
