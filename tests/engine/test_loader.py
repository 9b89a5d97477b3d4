"""What loading tells meanwhile."""

from pathlib import Path

from safetensors.torch import load_file

from nbgen.engine import loader
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


def test_tensors_that_become_one_count_as_much_as_they_are(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "qwen3_moe", **EXPERTS)
    done, whole = told(folder), sum(tensors(folder))
    assert len(done) < len(tensors(folder)), "transformers stacks experts"
    assert done == sorted(done)
    assert 0.99 * whole < done[-1] <= whole
