"""Prepacked layers give the very same numbers, and stand only where they do."""

import pytest
import torch
from torch import nn

from nbgen.engine import device, linear, shared_linear

pytestmark = pytest.mark.skipif(
    not device.computes_bfloat16(torch.device("cpu")), reason="this CPU has no bfloat16 arithmetic to speed up"
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


class Looking(nn.Module):
    """As towers do, which run long after what stands in place of their layers was tried."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.to(self.first.weight.dtype)))


def test_a_layer_whose_weight_is_looked_at_stays_as_it_is() -> None:
    model = nn.Sequential(Looking()).bfloat16()
    assert [name for _, name, _ in linear.prepack(model)] == ["second"]
    model(torch.zeros(1, 64))


def test_float32_stays_as_it_is() -> None:
    assert linear.prepack(small(torch.float32)) == []


def test_a_layer_that_would_differ_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.PrepackedLinear, "forward", lambda self, input: torch.zeros(*input.shape[:-1], 96))
    model = small()
    assert linear.prepack(model) == []


class Gated(nn.Module):
    """Two layers on one tensor, a third on their product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 96), nn.Linear(64, 96, bias=False), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate(x) * self.up(x))


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(9, 64), nn.ModuleList([Gated(), Gated()])

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("rows", [1, 5, 64])
@torch.inference_mode()
def test_layers_that_read_the_same_tensor_are_computed_as_one(rows: int) -> None:
    torch.manual_seed(0)
    model = Gates().to(torch.bfloat16)
    ids = torch.randint(0, 9, (1, rows))
    before = model(ids, use_cache=False)
    swaps = shared_linear.share(model, [1, 2, 3])
    assert [name for _, name, _ in swaps] == ["gate", "up"] * 2, "not the third, which reads another tensor"
    assert torch.equal(model(ids, use_cache=False), before)
    assert torch.equal(model(ids, use_cache=False), before), "nothing is left of the last forward"
    linear.restore(swaps)
    assert type(model.layers[0].gate) is nn.Linear


@torch.inference_mode()
def test_a_part_that_is_asked_for_alone_is_right() -> None:
    torch.manual_seed(0)
    model = Gates().to(torch.bfloat16)
    plain = model.layers[0].up
    shared_linear.share(model, [1])
    for _ in range(3):
        x = torch.randn(2, 64).bfloat16()
        assert torch.equal(model.layers[0].up(x), plain(x))
        assert torch.equal(model.layers[0].up(x), plain(x)), "also a second time with the same tensor"
