"""What loading tells meanwhile."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from nbgen.engine import loader
from nbgen.engine.assembly import assemble
from nbgen.engine.service import by_percents
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
    done = told(tiny_model)
    assert sorted(b - a for a, b in zip([0, *done], done, strict=False)) == sorted(tensors(tiny_model))


def test_percents_are_told_once(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", num_hidden_layers=40)
    said: list[tuple[str, int, int]] = []
    loader.load(EngineConfig(model=str(folder), device="cpu"), by_percents(lambda *step: said.append(step)))
    percents = [100 * done // total for stage, done, total in said if stage == "loading weights"]
    assert percents == sorted(set(percents))
    assert len(tensors(folder)) > 300
    assert 50 < len(percents) <= 100


def test_what_has_no_total_is_told_each_time() -> None:
    said: list[tuple[str, int, int]] = []
    report = by_percents(lambda *step: said.append(step))
    steps = [("a", 0, 0), ("a", 0, 0), ("b", 1, 200), ("b", 3, 200), ("c", 3, 200), ("a", 0, 0), ("c", 3, 200)]
    for step in steps:
        report(*step)
    assert said == steps
    report("c", 2, 200)
    report("d", 2, 200)
    report("d", 3, 200)
    assert said[len(steps) :] == [("d", 2, 200)]


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
