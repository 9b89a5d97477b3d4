"""Selective state spaces in C++: what transformers' functions give, the same bits however a text is cut."""

from typing import Any

import pytest
import torch
from transformers.models.mamba2 import modeling_mamba2 as family

from nbgen.engine import native, native_scan
from tests.conftest import at_least

ONE, MANY = family.mamba2_selective_state_update, family.mamba2_chunk_scan
OURS_ONE, OURS = native_scan._of_one_token(ONE), native_scan._of_many_tokens(MANY)
DTYPES = [dtype for dtype in native.KINDS if native.function("scan", dtype)]
#: Sequences, tokens, heads, groups, rows of a head, numbers of a row.
SHAPES = [(1, 1, 4, 2, 8, 16), (2, 70, 4, 1, 20, 32), (3, 9, 6, 3, 64, 128)]

pytestmark = pytest.mark.skipif(not DTYPES, reason="this machine has no C++ compiler")


def given(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    batch, tokens, heads, groups, rows, size = shape
    mixed = torch.randn(batch, tokens, heads * rows + 2 * groups * size).to(dtype)  # of which the others are parts
    inputs, into, out = torch.split(mixed, [heads * rows, groups * size, groups * size], dim=-1)
    return {
        "hidden_states": inputs.view(batch, tokens, heads, rows),
        "dt": torch.randn(batch, tokens, heads).to(dtype),
        "A": -torch.rand(heads) * 4,
        "B": into.view(batch, tokens, groups, size),
        "C": out.view(batch, tokens, groups, size),
        "D": torch.rand(heads).to(dtype),
        "dt_bias": torch.rand(heads).to(dtype),
    }


def of_one(numbers: dict[str, Any], token: int) -> dict[str, Any]:
    """As models ask for one token: what a head has one of is as wide as the head."""
    rows, size = numbers["hidden_states"].shape[3], numbers["B"].shape[3]
    made = {name: numbers[name][:, token] for name in ("hidden_states", "B", "C")}
    made["dt"] = numbers["dt"][:, token, :, None].expand(-1, -1, rows)
    made["A"] = numbers["A"][:, None, None].expand(-1, rows, size)
    return made | {name: numbers[name][:, None].expand(-1, rows) for name in ("D", "dt_bias")}


def state(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape[0], shape[2], shape[4], shape[5])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_many_tokens_give_what_transformers_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    numbers = given(shape, dtype)
    for changes in ({}, {"initial_states": None}, {"dt_limit": (0.1, 0.5)}, {"D": None, "dt_bias": None}):
        options = {"chunk_size": 32, "dt_softplus": True, "return_final_states": True, **changes}
        asked = {**numbers, "initial_states": state(shape), **options}
        start = None if asked["initial_states"] is None else asked["initial_states"].clone()
        output, last = MANY(**asked)
        made, left = OURS(**{**asked, "initial_states": start})
        assert made.dtype == output.dtype
        torch.testing.assert_close(made, output, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(left, last, rtol=1e-4, atol=1e-3)
        assert start is None or left.data_ptr() == start.data_ptr(), "a state is changed where it lies"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_one_token_gives_what_transformers_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    numbers, start = of_one(given(shape, dtype), 0), state(shape)
    expected, own = start.clone(), start.clone()
    output, made = ONE(expected, **numbers, dt_softplus=True), OURS_ONE(own, **numbers, dt_softplus=True)
    assert made.dtype == output.dtype
    most = float(output.abs().max())
    torch.testing.assert_close(made, output, rtol=0, atol=most * (1e-5 if dtype == torch.float32 else 3e-2))
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.inference_mode()
def test_neither_cuts_nor_threads_nor_company_change_a_bit(threads: int, dtype: torch.dtype) -> None:
    shape = SHAPES[1]
    numbers, start, before = given(shape, dtype), state(shape), torch.get_num_threads()
    options = {"chunk_size": 32, "dt_softplus": True, "return_final_states": True}
    expected, last = OURS(**numbers, initial_states=start.clone(), **options)
    alone = {name: each[1:] if each.dim() > 1 else each for name, each in numbers.items()}
    torch.set_num_threads(threads)
    try:
        left, pieces = start[1:].clone(), []
        for part in (slice(0, 64), slice(64, 69)):
            piece = {name: each[:, part] if each.dim() > 1 else each for name, each in alone.items()}
            output, left = OURS(**piece, initial_states=left, **options)
            pieces.append(output.to(dtype))
        pieces.append(OURS_ONE(left, **of_one(alone, 69), dt_softplus=True)[:, None])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(pieces, 1), expected[1:].to(dtype))
    assert torch.equal(left, last[1:])


def test_what_they_do_not_know_is_transformers_own() -> None:
    shape = SHAPES[0]
    numbers, start = given(shape, torch.float32), state(shape)
    kept = start.clone()
    OURS(**numbers, chunk_size=32, initial_states=start)  # somebody may learn from it
    assert torch.equal(start, kept)
    with torch.inference_mode():
        one = of_one(numbers, 0)
        gated = torch.rand_like(one["hidden_states"])
        assert torch.equal(OURS_ONE(start.clone(), **one, z=gated), ONE(start.clone(), **one, z=gated))
        one["D"] = one["D"].contiguous()
        assert torch.equal(OURS_ONE(start.clone(), **one), ONE(start.clone(), **one))
        if at_least("transformers", "5.24"):  # older ones leave it out silently
            with pytest.raises(ValueError, match="packed"):
                OURS(**numbers, chunk_size=32, seq_idx=torch.tensor([0]))
