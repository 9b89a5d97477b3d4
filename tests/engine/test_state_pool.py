"""States are copied no more often than they must be."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import FalconH1Config

from nbgen.engine import state_pool
from nbgen.engine.state_pool import StateKey, StatePool
from tests.conftest import save_model
from tests.engine.architectures import FAMILIES
from tests.engine.conftest import build


def left(count: int, value: float) -> SimpleNamespace:
    """What a forward of so many sequences leaves in two layers."""
    states = (torch.full((count, 4, 4), value) for _ in range(2))
    return SimpleNamespace(layers=[SimpleNamespace(recurrent_states={0: state}) for state in states])


def test_scattered_slots_are_uploaded_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, uploaded, upload = StatePool(FalconH1Config(num_hidden_layers=2)), [], state_pool.upload
    monkeypatch.setattr(state_pool, "upload", lambda *given: uploaded.append(1) or upload(*given))
    pool.write([0, 1, 2, 3], left(4, 1.0))
    assert not uploaded
    pool.write([3, 0], left(2, 2.0))
    assert len(uploaded) == 1
    read = pool.read([2, 0, 3])
    assert len(uploaded) == 2
    assert [layer.recurrent_states[0][:, 0, 0].tolist() for layer in read.layers] == [[1.0, 2.0, 2.0]] * 2


def test_no_more_slots_are_kept_than_there_can_be(tmp_path: Path) -> None:
    assembly = build(save_model(tmp_path, "lfm2", **FAMILIES["lfm2"].changes), max_running=5)
    pool = assembly.engine._runner.pool
    pool.clear()
    for slot in range(5):
        pool.write([slot], left(1, 1.0))
    assert {len(states) for states in pool._states.values() if len(states)} == {5}


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), torch.bfloat16), ((4, 8), torch.float32)])
def test_states_that_a_forward_left_in_another_form_are_not_written_over(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    pool, key = StatePool(FalconH1Config(num_hidden_layers=2)), StateKey(0, "recurrent_states", 0)
    pool.write([0], left(1, 1.0))
    assert pool.states(key, 1, (4, 4), torch.float32).shape == (1, 4, 4)
    with pytest.raises(ValueError, match="keeps its recurrent_states as"):
        pool.states(key, 1, shape, dtype)
