"""Every family writes what transformers' own float32 `generate` writes, in the README's tier, or is refused."""

import re
from pathlib import Path

import pytest

from nbgen.engine.assembly import Assembly
from nbgen.errors import ModelError
from nbgen.messages import GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import at_least, save_model
from tests.engine.architectures import COPIES, FAMILIES, HERE
from tests.engine.conftest import build, generate, greedy, ids
from tests.engine.native_families import ALIKE
from tests.soak import seldom

README = Path(__file__).parents[2] / "README.md"
#: Longer than every window and chunk here, and than a prefill's.
PROMPTS = [list(range(10, 10 + length)) for length in (30, 7, 1, 19)]
NEW_TOKENS = 8
PARAMS = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
REQUESTS = [GenerateRequest(rid=f"r{i}", input_ids=prompt, params=PARAMS) for i, prompt in enumerate(PROMPTS)]

SERVED = [name for name in HERE if len(FAMILIES[name].tier) == 1]
REFUSED = [name for name in HERE if name not in SERVED]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*causal_conv1d.*", "ignore:.*mamba_ssm.*", "ignore:.*fla.*"),
]


def answers(assembly: Assembly, requests: list[GenerateRequest]) -> list[list[int]]:
    outputs = generate(assembly, requests)
    return [ids(outputs[request.rid]) for request in requests]


@pytest.mark.parametrize("name", seldom(SERVED, COPIES))
def test_a_family_writes_what_transformers_writes(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = save_model(tmp_path, name, **family.changes)
    assembly = build(folder, prefill_chunk=16)
    tier = family.tier if at_least("transformers", family.tier_since) else "C"
    assert (assembly.model.tier, assembly.engine._scheduler.cuts_prompts) == (tier, family.chunked and tier != "C")
    assert assembly.model.layers_in == "C++" or name not in ALIKE
    together = answers(assembly, REQUESTS)
    expected = greedy(folder, PROMPTS, NEW_TOKENS, together)
    assert together == expected, "in one batch"
    assert [answers(assembly, [request])[0] for request in REQUESTS[:2]] == expected[:2], "again, on prefix hits"
    assembly.engine.flush_cache()
    assert answers(assembly, REQUESTS[:1]) == expected[:1], "alone"


LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": False}


@pytest.mark.parametrize(("name", "tier", "layers"), [("smollm3", "A", LAYERS), ("phimoe", "C", {})])
def test_a_window_that_only_the_mask_knows_of_counts(name: str, tier: str, layers: dict, tmp_path: Path) -> None:
    """One beyond what is tried at the start; where it may be all layers' or none's, transformers' own code knows."""
    folder = save_model(tmp_path, name, sliding_window=26, **layers)
    assembly = build(folder, prefill_chunk=16)
    assert assembly.model.tier == tier
    found = answers(assembly, REQUESTS)
    assert found == greedy(folder, PROMPTS, NEW_TOKENS, found)


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_is_refused_with_words(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = save_model(tmp_path, name, **family.changes)
    with pytest.raises(ModelError, match=family.tier):
        build(folder)


def test_the_readme_names_each_family_with_its_tier() -> None:
    section = README.read_text().partition("## Architectures")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?:\*\*)?([ABC]|refused: [^|*]+?)(?:\*\*)?:? \|[^|]*\| ([^|]+) \|$", section, re.MULTILINE)
    named = {family: tier for tier, families in rows for family in families.strip().split(", ")}
    expected = {name: f.tier if len(f.tier) == 1 else f"refused: {f.tier}" for name, f in FAMILIES.items()}
    assert named == {f"`{name}`": tier for name, tier in expected.items()}
