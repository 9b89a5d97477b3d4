"""Products of our own are right, and a row's is the same whatever is beside it and however many threads there are."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nbgen.engine import int4_linear, int8_linear, linear, native, native_linear
from nbgen.engine.native_float8_linear import NativeFloat8Linear
from nbgen.engine.native_half_linear import NativeHalfLinear
from nbgen.engine.native_int4_linear import NativeInt4Linear, packed
from nbgen.engine.native_int8_linear import NativeInt8Linear
from nbgen.engine.native_linear import NativeLinear, NativeProduct
from nbgen.engine.native_scaled_linear import BLOCK, NativeScaledLinear

#: Outputs and inputs: whole panels, a part of one, a single tile, long rows, panels that one cache has no room for.
SIZES = [(96, 64), (1028, 192), (4, 32), (68, 2592), (100, 992)]
DTYPES = [dtype for dtype in native.KINDS if native.function("multiply", dtype)]
#: Largest error, of the largest result.
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 5e-3}
#: The numbers of 4 bits of OCP Microscaling Formats 1.0, by their bits.
MXFP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(params=[1, 2, 5], ids=lambda threads: f"{threads} threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def made(sizes: tuple[int, int], dtype: torch.dtype, *, bias: bool) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(sizes[1], sizes[0], bias=bias, dtype=dtype)


def plain(stock: nn.Linear) -> NativeProduct:
    return NativeLinear(stock.weight, stock.bias)


def across(stock: nn.Linear) -> NativeProduct:
    """Its vectors lie across two lines of memory, as those of a file do."""
    room = stock.weight.new_empty(stock.weight.numel() + 64)
    begin = (64 - room.data_ptr() % 64 + 16) // room.element_size()
    weight = room[begin:][: stock.weight.numel()].view_as(stock.weight).copy_(stock.weight)
    return NativeLinear(nn.Parameter(weight), stock.bias)


def eight(stock: nn.Linear) -> NativeProduct:
    return NativeInt8Linear(stock.weight, stock.bias)


def four(stock: nn.Linear) -> NativeProduct:
    return NativeInt4Linear(stock.weight, stock.bias)


def coded(stock: nn.Linear) -> NativeProduct:
    values, codes, largest = nearest_codes(stock)
    return NativeScaledLinear(packed(values), largest, stock.bias, stock.weight.dtype, codes)


def nearest_codes(stock: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which of 16 numbers is nearest to each weight, these numbers, and what they are times."""
    codes = torch.linspace(-1, 1, 16).pow(3)
    blocks = stock.weight.float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(2)
    values = (blocks / largest[..., None]).unsqueeze(3).sub(codes).abs().argmin(3)
    return values.to(torch.uint8).flatten(1), codes, largest


def powers(stock: nn.Linear) -> NativeProduct:
    """Its powers of two lie at an odd address, as they may in a file."""
    values, exponents = nearest_powers(stock)
    odd = exponents.new_empty(exponents.numel() + 1)[1:].view_as(exponents).copy_(exponents)
    return NativeScaledLinear(packed(values), odd, stock.bias, stock.weight.dtype)


def nearest_powers(stock: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of MXFP4's numbers is nearest to each weight, and the exponents of each group's power of two."""
    groups = stock.weight.float().unflatten(1, (-1, int4_linear.GROUP))
    exponents = groups.abs().amax(2).log2().floor() - 2
    values = (groups / exponents.exp2()[..., None]).unsqueeze(3).sub(MXFP4).abs().argmin(3)
    return values.to(torch.uint8).flatten(1), (exponents + 127).to(torch.uint8)


def blocks(stock: nn.Linear) -> NativeProduct:
    return NativeInt8Linear(stock.weight, stock.bias, nearest_multiples(stock))


def nearest_multiples(stock: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of 8 bits, and what each block's are times."""
    blocks = stock.weight.float().unflatten(1, (-1, BLOCK))
    factors = blocks.abs().amax(2) / 127
    return (blocks / factors[..., None]).round().to(torch.int8).flatten(1), factors


def floats(stock: nn.Linear) -> NativeProduct:
    words, factors = nearest_floats(stock)
    return NativeFloat8Linear(words, factors, stock.bias, stock.weight.dtype)


def nearest_floats(stock: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats of 8 bits, and what each group's are times: large ones and, of every other output, the smallest."""
    groups = stock.weight.float().unflatten(1, (-1, int4_linear.GROUP))
    most = torch.tensor([448.0, 0.1]).repeat(len(groups) // 2)
    factors = groups.abs().amax(2) / most[:, None]
    return (groups / factors[..., None]).flatten(1).to(torch.float8_e4m3fn), factors


def weight_of(kind: object, stock: nn.Linear) -> torch.Tensor:
    """The numbers that a layer of this kind multiplies by."""
    if kind in (plain, across):
        return stock.weight.double()
    if kind is eight:
        values, scale = int8_linear.rounded(stock.weight)
        return values.double() * scale.double()[:, None]
    if kind is coded:
        values, codes, largest = nearest_codes(stock)
        numbers = codes[values.long()].unflatten(1, (-1, BLOCK)) * largest[..., None]
        return numbers.flatten(1).to(stock.weight.dtype).double()
    if kind is powers:
        values, exponents = nearest_powers(stock)
        groups = MXFP4[values.long()].unflatten(1, (-1, int4_linear.GROUP))
        return (groups * (exponents.double() - 127).exp2()[..., None]).flatten(1)
    if kind is blocks:
        values, factors = nearest_multiples(stock)
        numbers = values.float().unflatten(1, (-1, BLOCK)) * factors[..., None]
        return numbers.flatten(1).to(stock.weight.dtype).double()
    if kind is floats:
        words, factors = nearest_floats(stock)
        numbers = words.float().unflatten(1, (-1, int4_linear.GROUP)) * factors[..., None]
        return numbers.flatten(1).to(stock.weight.dtype).double()
    values, scales = int4_linear.rounded(stock.weight)
    step, middle = scales.float().transpose(0, 1)[..., None].unbind(2)
    groups = values.float().unflatten(1, (-1, int4_linear.GROUP))
    return ((groups - 8) * step + middle).to(stock.weight.dtype).flatten(1).double()


#: What a layer is kept as, and its outputs and inputs: whole blocks where these have numbers in common.
KINDS = [(kind, sizes) for kind in (plain, across, eight, four, floats) for sizes in SIZES]
KINDS += [(kind, (outputs, inputs + inputs % BLOCK)) for kind in (coded, powers, blocks) for outputs, inputs in SIZES]


def named(value: object) -> str:
    return getattr(value, "__name__", str(value))


def test_this_machine_has_float32() -> None:
    assert torch.float32 in DTYPES, "without AVX2 none of this is tested"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=named)
@torch.inference_mode()
def test_it_is_the_linear_layer(
    sizes: tuple[int, int],
    kind: Callable[[nn.Linear], NativeProduct],
    bias: bool,
    dtype: torch.dtype,
    threads: int,
) -> None:
    stock = made(sizes, dtype, bias=bias)
    inputs = torch.randn(3, 23, sizes[1]).to(dtype)
    expected = inputs.double() @ weight_of(kind, stock).T + (stock.bias.double() if bias else 0)
    ours = kind(stock)
    assert ours(inputs).shape == (3, 23, sizes[0])
    for rows in (inputs, inputs[0, :1], inputs[0, :5], inputs[0, :7], inputs[0, :17]):
        wanted = expected[0, : len(rows)] if rows is not inputs else expected
        assert (ours(rows).double() - wanted).abs().max() <= CLOSE[dtype] * wanted.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=named)
@torch.inference_mode()
def test_a_row_is_the_same_to_the_bit_whatever_is_beside_it(
    sizes: tuple[int, int], kind: Callable[[nn.Linear], NativeProduct], dtype: torch.dtype, threads: int
) -> None:
    ours, rows = kind(made(sizes, dtype, bias=True)), torch.randn(61, sizes[1]).to(dtype)
    together = ours(rows)
    for count in (*range(1, 20), 39, 60):
        assert torch.equal(ours(rows[:count]), together[:count])
        assert torch.equal(ours(rows[-count:]), together[-count:])
    assert ours(rows[:0]).shape == (0, sizes[0])
    torch.set_num_threads(3)
    assert torch.equal(ours(rows), together)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_many_long_rows_of_large_and_small_numbers_by_integers(dtype: torch.dtype, threads: int) -> None:
    stock = made((132, 4160), dtype, bias=True)
    rows = torch.randn(400, 4160).mul(torch.logspace(-20, 20, 400)[:, None]).to(dtype)
    rows[:, 77] *= 100
    expected = rows.double() @ weight_of(eight, stock).T + stock.bias.double()
    ours, error = eight(stock), 5 * CLOSE[dtype] * expected.abs().amax(1)
    together = ours(rows)
    assert ((together.double() - expected).abs().amax(1) <= error).all()
    for count in (1, 8, 9, 131):
        assert torch.equal(ours(rows[-count:]), together[-count:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [plain, eight, four, coded, powers, blocks, floats], ids=named)
@torch.inference_mode()
def test_what_is_not_finite_stays_so_in_its_row_alone(
    kind: Callable[[nn.Linear], NativeProduct], dtype: torch.dtype
) -> None:
    ours, rows = kind(made((68, 192), dtype, bias=True)), torch.randn(20, 192).to(dtype)
    expected, wrong = ours(rows), rows.clone()
    wrong[3, 5], wrong[4, 6], wrong[16, 7], wrong[17] = torch.nan, torch.inf, -torch.inf, 0
    found = ours(wrong)
    assert not found[[3, 4, 16]].isfinite().any()
    assert torch.equal(found[17], ours.bias)
    right = [row for row in range(20) if row not in (3, 4, 16, 17)]
    assert torch.equal(found[right], expected[right])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [coded, powers, blocks, floats], ids=named)
@torch.inference_mode()
def test_what_has_a_factor_is_to_the_bit_what_it_is_written_out(
    kind: Callable[[nn.Linear], NativeProduct], dtype: torch.dtype
) -> None:
    stock = made((100, 1024), dtype, bias=True)
    ours, written = kind(stock), NativeLinear(weight_of(kind, stock).to(dtype), stock.bias)
    for rows in (torch.randn(count, 1024).to(dtype) for count in (1, 4, 8, 17, 60)):
        assert torch.equal(ours(rows), written(rows))


@pytest.mark.parametrize("dtype", [*DTYPES, "16 bits in float32"], ids=str)
@pytest.mark.parametrize("outputs", [7, 97, 131])
@torch.inference_mode()
def test_outputs_need_not_come_in_fours(outputs: int, dtype: torch.dtype | str, threads: int) -> None:
    half = isinstance(dtype, str)
    stock = made((outputs, 64), torch.bfloat16 if half else dtype, bias=True)
    ours = NativeHalfLinear(stock.weight, stock.bias.float()) if half else plain(stock)
    rows = torch.randn(19, 64).to(torch.float32 if half else dtype)
    expected, together = rows.double() @ stock.weight.double().T + stock.bias.double(), ours(rows)
    assert (together.double() - expected).abs().max() <= CLOSE[rows.dtype] * expected.abs().max()
    for count in (1, 2, 5, 18):
        assert torch.equal(ours(rows[:count]), together[:count])


def test_a_layer_that_lies_the_other_way_is_turned() -> None:
    torch.manual_seed(0)
    stock, rows = Conv1D(99, 64), torch.randn(5, 64)
    model = nn.Sequential(stock)
    native_linear.replace(model)
    assert isinstance(model[0], NativeLinear)
    torch.testing.assert_close(model(rows), stock(rows))


@torch.inference_mode()
def test_only_plain_layers_of_whole_vectors_are_replaced() -> None:
    class Twice(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 3), nn.Linear(3, 32), Twice(32, 32), nn.Linear(32, 8).half())
    swaps = native_linear.replace(model)
    assert [name for _, name, _ in swaps] == ["0"]
    assert model[0].weight is swaps[0][2].weight, "not a copy"
    linear.restore(swaps)
    assert type(model[0]) is nn.Linear


def test_other_numbers_than_the_weight_s_are_refused_as_torch_does() -> None:
    ours = NativeLinear(torch.zeros(8, 64), None)
    with pytest.raises(RuntimeError, match="dtype"):
        ours(torch.zeros(1, 64, dtype=torch.float64))
