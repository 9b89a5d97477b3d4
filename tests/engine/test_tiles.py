"""Products in a processor's tiles (AMX). Their instructions are emulated, too: all around them is tried anywhere."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from nbgen.engine import native, native_linear
from nbgen.engine.attention import Layer, Scores
from nbgen.engine.attention_native import NativeAttention
from nbgen.engine.attention_plan import CHUNK
from nbgen.engine.attention_window import Window
from nbgen.engine.native_linear import NativeLinear, NativeProduct
from tests.engine import test_attention
from tests.engine.test_attention import Case
from tests.engine.test_native_decoder import Run, runner_of, saved
from tests.engine.test_native_linear import blocks, coded, eight, floats, four, named, powers, weight_of

#: Inputs that one instruction adds up.
TILE_INPUTS = 32
#: Outputs and inputs: one tile, parts of tiles, several units, more inputs than are multiplied at a time.
SIZES = [(16, 32), (7, 32), (24, 64), (297, 416), (2100, 64), (32, 1088)]
#: Rows: one, a tile or two, with more or less beside, and more than are packed.
COUNTS = (1, 2, 15, 16, 17, 33, 65, 128, 129, 160, 164)
MANY = 165

pytestmark = pytest.mark.skipif(
    native_linear.function("multiply", torch.bfloat16) is None, reason="this processor has no products of bfloat16"
)


@pytest.fixture(autouse=True, params=["emulated", "own"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor with tiles, for what is made from here on."""
    for name in ("library", "rounds", "tiles"):
        monkeypatch.setattr(native, name, cache(getattr(native, name).__wrapped__))
    if request.param == "emulated":
        monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DEMULATED_TILES"))
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    elif not torch.cpu._is_amx_tile_supported():
        pytest.skip("this processor has no tiles of its own")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def made(outputs: int, inputs: int, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)


def in_tiles(stock: nn.Linear) -> NativeLinear:
    assert native_linear.readable(stock), "tiles are not used"
    return NativeLinear(stock.weight, stock.bias)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@torch.inference_mode()
def test_it_is_the_linear_layer_and_a_row_is_the_same_whatever_is_beside_it(sizes: tuple[int, int], bias: bool) -> None:
    stock = made(*sizes, bias=bias)
    ours, rows = in_tiles(stock), torch.randn(MANY, sizes[1]).bfloat16()
    together = ours(rows)
    expected = rows.double() @ stock.weight.double().T + (stock.bias.double() if bias else 0)
    assert (together.double() - expected).abs().max() <= 5e-3 * expected.abs().max()
    torch.set_num_threads(3)
    for count in COUNTS:
        assert torch.equal(ours(rows[:count]), together[:count])
        assert torch.equal(ours(rows[-count:]), together[-count:])


@torch.inference_mode()
def test_it_is_the_tiles_that_multiply() -> None:
    """Of each 32 inputs the instruction adds up the even ones, and the odd ones, which nothing else does.

    All sums would be zero but for what is rounded on the way, so that they tell in which order it was.
    """
    stock, half = made(32, 1088, bias=False), torch.randn(40, 544).bfloat16()
    stock.weight[:, 544:] = stock.weight[:, :544]
    rows, sums = torch.cat((half, -half), dim=1), torch.zeros(40, 32)
    for k in range(0, 1088, TILE_INPUTS):
        even, odd = torch.zeros(40, 32), torch.zeros(40, 32)
        for i in range(k, k + TILE_INPUTS, 2):
            even += rows[:, i, None].float() * stock.weight[:, i].float()
            odd += rows[:, i + 1, None].float() * stock.weight[:, i + 1].float()
        sums += even + odd
    assert torch.equal(in_tiles(stock)(rows), sums.bfloat16())


@torch.inference_mode()
def test_numbers_too_small_to_be_normal_count_as_zero() -> None:
    for number, weight, expected in (
        (2.0**-100, 2.0**-30, 0),
        (2.0**-100, 2.0**-26, 2.0**-121),
        (2.0**100, 2.0**-130, 0),
    ):
        stock = made(16, 32, bias=False)
        stock.weight.fill_(weight)
        assert (in_tiles(stock)(torch.full((1, 32), number).bfloat16()) == expected).all()


def test_a_model_s_layers_are_the_same_however_a_prompt_is_cut(tmp_path: Path) -> None:
    runner = runner_of(saved(tmp_path, "qwen3"), torch.bfloat16)
    assert runner.native_model, "nothing was tested"
    run = Run(runner)
    alone, beside, other = run.sequence(70, 1), run.sequence(70, 1), run.sequence(33, 50)
    expected = [run.step((alone, 60))[0], *(run.step((alone, 1))[0] for _ in range(3))]
    run.step((beside, 41))
    got = [run.step((beside, 19), (other, 30))[0], *(run.step((beside, 1), (other, 1))[0] for _ in range(3))]
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "mixtral", "phi"])
def test_a_long_prompt_is_the_same_however_it_is_cut(tmp_path: Path, family: str) -> None:
    runner = runner_of(saved(tmp_path, family), torch.bfloat16)
    assert runner.native_model, "nothing was tested"
    run = Run(runner)
    whole, cut, other = run.sequence(MANY + 30, 1), run.sequence(MANY + 30, 1), run.sequence(33, 50)
    expected = [run.step((whole, MANY + 29))[0], run.step((whole, 1))[0]]
    run.step((cut, MANY - 20))
    got = [run.step((cut, 49), (other, 30))[0], run.step((cut, 1), (other, 1))[0]]
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("kind", [eight, four, coded, powers, blocks, floats], ids=named)
@torch.inference_mode()
def test_quantized_weights_are_multiplied_as_if_they_were_written_out(
    kind: Callable[[nn.Linear], NativeProduct],
) -> None:
    stock = made(84, 320 if kind not in (coded, powers, blocks) else 512)
    ours, rows = kind(stock), torch.randn(MANY, stock.in_features).bfloat16()
    together, weight = ours(rows), weight_of(kind, stock)
    expected = rows.double() @ weight.double().T + stock.bias.double()
    assert (together.double() - expected).abs().max() <= 5e-3 * expected.abs().max()
    for count in (1, 2, 17, 40, 128, 130):
        assert torch.equal(ours(rows[:count]), together[:count])
        assert torch.equal(ours(rows[-count:]), together[-count:])
    if kind not in (eight,):  # whose scale multiplies a complete sum
        assert torch.equal(together, NativeLinear(weight.bfloat16(), stock.bias)(rows))


@pytest.mark.parametrize("window", [Window(), Window(sliding=CHUNK + 9)], ids=["whole", "sliding"])
@pytest.mark.parametrize("dims", [(64, 64), (80, 72), (48, 40)], ids=str)
def test_attention_in_tiles_is_the_formula_s(dims: tuple[int, int], window: Window) -> None:
    lengths = [(length, 1) for length in (CHUNK, 1, 3 * CHUNK + 5, 17)] + [(150, 90), (40, 40)]
    case = Case(lengths, 6, 2, seed=1, shuffled=True, dims=dims)
    case.query, case.layer = case.query.bfloat16(), Layer(*(tensor.bfloat16() for tensor in case.layer))
    for scores in (Scores(0.1, None, case.sinks), Scores(0.1, 5.0)):
        output = NativeAttention().attend(case.query, case.layer, case.step, window, scores)
        torch.testing.assert_close(output.float(), case.expected(window, scores), rtol=1e-2, atol=4e-3)


def test_attention_in_tiles_has_the_same_bits_on_any_number_of_threads_and_however_a_prompt_is_cut() -> None:
    kinds = torch.bfloat16, torch.bfloat16
    for dims in test_attention.DIMS:
        test_attention.test_a_sequence_has_the_very_same_numbers_whatever_it_shares_and_on_any_number_of_threads(
            *kinds, dims
        )
        test_attention.test_a_prompt_has_the_very_same_numbers_however_it_is_cut(*kinds, dims)


def test_where_tiles_cannot_be_tried_they_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.sys, "executable", "false")
    assert not native.tiles()
    assert not native_linear.readable(made(32, 64))
