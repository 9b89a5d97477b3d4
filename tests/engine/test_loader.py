"""What loading tells meanwhile."""

from itertools import combinations
from pathlib import Path

import pytest
from safetensors.torch import load_file

from nbgen.engine import loader
from nbgen.engine.assembly import assemble
from nbgen.engine_config import EngineConfig
from tests.conftest import save_model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}


def told(folder: Path) -> list[int]:
    """The bytes that were said to be loaded, one time after the other."""
    reports: list[tuple[str, int, int]] = []
    loader.load(EngineConfig(model=str(folder), device="cpu"), lambda *report: reports.append(report))
    size = (folder / "model.safetensors").stat().st_size
    assert {total for stage, _, total in reports if stage == "loading weights"} == {size}
    return [done for stage, done, _ in reports if stage == "loading weights"]


def tensors(folder: Path) -> list[int]:
    return [tensor.nbytes for tensor in load_file(folder / "model.safetensors").values()]


def test_progress_is_told_by_bytes(tiny_model: Path) -> None:
    done, whole = told(tiny_model), (tiny_model / "model.safetensors").stat().st_size
    possible = {sum(some) for count in (1, 2) for some in combinations(tensors(tiny_model), count)}
    assert done[0] in possible
    assert 0.97 * whole < done[-1] <= sum(tensors(tiny_model))


def test_progress_is_told_only_where_a_percent_more_is_done(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", num_hidden_layers=40)
    whole = (folder / "model.safetensors").stat().st_size
    percents = [100 * done // whole for done in told(folder)]
    assert percents == sorted(set(percents))
    assert len(tensors(folder)) > 300
    assert 50 < len(percents) <= 100


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rounding_tells_of_weights(kind: str, tiny_model: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    assemble(EngineConfig(model=str(tiny_model), quantization=kind), lambda *report: reports.append(report))
    first, *others = [report[1:] for report in reports if report[0] == f"rounding weights to {kind}"]
    assert first == (0, 0)
    done, (total,) = [done for done, _ in others], {total for _, total in others}
    assert done == sorted(done)
    assert (len(done) > 5, done[-1]) == (True, total)


def test_tensors_that_become_one_count_as_much_as_they_are(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "qwen3_moe", **EXPERTS)
    done, whole = told(folder), sum(tensors(folder))
    assert len(done) < len(tensors(folder)), "transformers stacks experts"
    assert done == sorted(done)
    assert 0.99 * whole < done[-1] <= whole
