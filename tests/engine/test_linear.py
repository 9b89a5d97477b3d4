"""Prepacked layers give the very same numbers, and stand only where they do."""

import pytest
import torch
from torch import nn

from nbgen.engine import linear

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 arithmetic to speed up"
)


class Twice(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def small(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Sequential(nn.Linear(96, 32, bias=False)), Twice(32, 8)).to(dtype)


@pytest.mark.parametrize("rows", [1, 7, 64])
@torch.inference_mode()
def test_the_numbers_are_the_same_to_the_bit(rows: int) -> None:
    model, inputs = small(), torch.randn(1, rows, 64).bfloat16()
    before = model(inputs)
    swaps = linear.prepack(model)
    assert len(swaps) == 2, "the two plain layers, not the one that does more"
    assert isinstance(model[1][0], linear.PrepackedLinear)
    assert torch.equal(model(inputs), before)
    linear.restore(swaps)
    assert type(model[0]) is nn.Linear
    assert torch.equal(model(inputs), before)


def test_float32_stays_as_it_is() -> None:
    assert linear.prepack(small(torch.float32)) == []


def test_a_layer_that_would_differ_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.PrepackedLinear, "forward", lambda self, input: torch.zeros(*input.shape[:-1], 96))
    model = small()
    assert linear.prepack(model) == []
