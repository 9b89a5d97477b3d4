"""Functions of ours in place of a family's: where they stand, that models call them, and that they can be put back."""

from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoModelForCausalLM
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_next import modeling_qwen3_next

from nbgen.engine import linear, native_delta, native_scan
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build

#: Who replaces, a family that has the functions, and those.
REPLACED = [
    (native_delta, modeling_qwen3_next, ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule")),
    (native_scan, modeling_mamba2, ("mamba2_selective_state_update", "mamba2_chunk_scan")),
]
DELTA = ["qwen3_next", "qwen3_5_text", "olmo_hybrid"]
SCAN = ["mamba2", "granitemoehybrid", "falcon_h1", "bamba", "nemotron_h", "zamba2"]


@pytest.mark.parametrize(("ours", "family", "names"), REPLACED, ids=["delta", "scan"])
def test_they_are_replaced_and_put_back(
    ours: ModuleType, family: ModuleType, names: tuple[str, str], tmp_path: Path
) -> None:
    before = [getattr(family, name) for name in names]
    stock = [getattr(function, "stock", function) for function in before]  # another model's may stand there
    model = AutoModelForCausalLM.from_pretrained(saved(tmp_path, family.__name__.rpartition(".modeling_")[2]))
    swaps = ours.replace(model)
    assert {name for _, name, _ in swaps} == set(names)
    assert [getattr(family, name).stock for name in names] == stock
    again = ours.replace(model)
    assert [getattr(family, name).stock for name in names] == stock, "not ours around ours"
    linear.restore(again)
    linear.restore(swaps)
    assert [getattr(family, name) for name in names] == before


@pytest.mark.parametrize(
    ("ours", "name"),
    [*((native_delta, name) for name in DELTA), *((native_scan, name) for name in SCAN)],
    ids=[*DELTA, *SCAN],
)
def test_families_that_have_them_call_ours(
    ours: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(ours, "_suits", lambda *_: called.append(name) or False)
    assert build(saved(tmp_path, name)).model.tier == "B"
    assert called


def saved(folder: Path, name: str) -> Path:
    return save_model(folder, name, **FAMILIES[name].changes)
