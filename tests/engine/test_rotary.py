"""A sequence's rotary frequencies depend on its own length, whatever runs beside it, whenever it grows long."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nbgen.engine import rotary
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import save_model
from tests.engine.conftest import build, generate, ids

SHORT, LONGEST, NEW_TOKENS = 32, 128, 12
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0 + i for i in range(8)],
    "original_max_position_embeddings": SHORT,
}
#: Short throughout, short that grows long, just short, just long, long.
PROMPTS = [list(range(10, 10 + length)) for length in (7, 25, 32, 33, 60)]
REQUESTS = [
    GenerateRequest(
        rid=f"r{i}",
        input_ids=prompt,
        params=SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True),
    )
    for i, prompt in enumerate(PROMPTS)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longrope")
    return save_model(
        folder,
        "phi3",
        rope_parameters=LONG_ROPE,
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=SHORT,
    )


def reference(folder: Path) -> list[list[int]]:
    """transformers' own greedy continuations, without its cache: it mixes keys of both kinds."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "use_cache": False}
    return [model.generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in PROMPTS]


def test_each_sequence_by_its_own_length(folder: Path) -> None:
    expected = reference(folder)
    assembly = build(folder, prefill_chunk=16)
    assert assembly.model.tier == "A"
    together = generate(assembly, REQUESTS)
    assert [ids(together[r.rid]) for r in REQUESTS] == expected, "in one batch"
    assert [ids(generate(assembly, [r])[r.rid]) for r in REQUESTS] == expected, "one after the other, on prefix hits"


def test_dynamic_scaling_begins_where_the_context_ends(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    folder = save_model(tmp_path, "llama", rope_parameters=rope, max_position_embeddings=LONGEST)
    assembly = build(folder)
    together = generate(assembly, REQUESTS)
    assert [ids(together[r.rid]) for r in REQUESTS] == reference(folder)
    assert assembly.model.context_length == LONGEST


def test_the_two_kinds_of_frequencies_differ(folder: Path) -> None:
    """Or the test above could not fail."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPTS[-1]])
    long, short = model(ids).logits[0, 5], model(ids[:, :6]).logits[0, 5]
    assert not torch.allclose(long, short, atol=1e-2)


def test_long_sequences_share_blocks_with_long_ones_only(folder: Path) -> None:
    assembly = build(folder)
    cached = [generate(assembly, [REQUESTS[i]])[f"r{i}"][0].cached_tokens for i in (0, 4, 3, 0)]
    assert cached == [0, 0, len(PROMPTS[3]) - 1, len(PROMPTS[0]) - 1]
    status = assembly.engine.status()
    assert status.blocks_free == status.blocks_total


def test_frequencies_are_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is waited for while they are."""
    assembly = build(folder)
    expected = ids(generate(assembly, [REQUESTS[4]])["r4"])
    monkeypatch.setitem(rotary.ROPE_INIT_FUNCTIONS, "longrope", None)
    assert ids(generate(assembly, [REQUESTS[4]])["r4"]) == expected


def test_kinds_of_layers_with_such_frequencies_of_their_own_run_one_sequence_at_a_time(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    rope = dict.fromkeys(kinds, LONG_ROPE)
    folder = save_model(tmp_path, "olmo3", layer_types=kinds, sliding_window=8, rope_parameters=rope)
    assert build(folder).model.tier == "C"
