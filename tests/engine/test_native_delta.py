"""The gated delta rule in C++: what transformers' functions give, the same bits however a text is cut."""

from typing import Any

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as family

from nbgen.engine import native, native_delta
from tests.conftest import at_least

ONE, MANY = family.torch_recurrent_gated_delta_rule, family.torch_chunk_gated_delta_rule
OURS = native_delta._instead_of(ONE)
DTYPES = [dtype for dtype in native.KINDS if native.function("remember", dtype)]
#: Sequences, tokens, heads of keys and of values, numbers of a key and of a value.
SHAPES = [(1, 1, 2, 4, 16, 16), (3, 1, 4, 4, 32, 64), (1, 70, 2, 2, 128, 128), (2, 9, 1, 3, 8, 96)]

pytestmark = pytest.mark.skipif(not DTYPES, reason="this machine has no C++ compiler")


def given(shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    batch, tokens, key_heads, value_heads, key_dim, value_dim = shape
    width = 2 * key_heads * key_dim + value_heads * value_dim
    mixed = torch.randn(batch, tokens, width).to(dtype)  # of which queries, keys and values are parts
    keys = key_heads * key_dim
    query, key, value = torch.split(mixed, [keys, keys, value_heads * value_dim], dim=-1)
    return {
        "query": query.reshape(batch, tokens, key_heads, key_dim),
        "key": key.reshape(batch, tokens, key_heads, key_dim),
        "value": value.reshape(batch, tokens, value_heads, value_dim),
        "g": -torch.rand(batch, tokens, value_heads),
        "beta": torch.rand(batch, tokens, value_heads).to(dtype),
    }


def repeated(numbers: dict[str, Any], times: int) -> dict[str, Any]:
    """With as many heads of keys as of values, which older functions want."""
    return {**numbers, **{name: numbers[name].repeat_interleave(times, 2) for name in ("query", "key")}}


def ways(shape: tuple[int, ...]) -> dict[str, Any]:
    state = torch.randn(shape[0], shape[3], shape[4], shape[5])
    return {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_it_gives_what_transformers_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    numbers, options = given(shape, dtype), ways(shape)
    for changes in ({}, {"initial_state": None}, {"use_qk_l2norm_in_kernel": False}):
        asked = {**options, **changes}
        if not asked["use_qk_l2norm_in_kernel"]:
            numbers["key"] = numbers["key"] / shape[4]  # or else states grow without end
        stock = ONE if shape[1] == 1 else MANY
        output, state = stock(**repeated(numbers, shape[3] // shape[2]), **asked)
        start = asked["initial_state"] if asked["initial_state"] is None else asked["initial_state"].clone()
        made, left = OURS(**numbers, **{**asked, "initial_state": start})
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(made, output, **tolerance)
        torch.testing.assert_close(left, state, rtol=1e-3, atol=1e-4)
        assert start is None or left.data_ptr() == start.data_ptr(), "a state is changed where it lies"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.inference_mode()
def test_neither_cuts_nor_threads_nor_company_change_a_bit(threads: int, dtype: torch.dtype) -> None:
    shape = (2, 70, 2, 4, 32, 128)
    numbers, options, before = given(shape, dtype), ways(shape), torch.get_num_threads()
    start = options.pop("initial_state")
    expected, last = OURS(**numbers, initial_state=start.clone(), **options)
    torch.set_num_threads(threads)
    try:
        state, pieces = start[1:].clone(), []
        for part in (slice(0, 64), slice(64, 69), slice(69, 70)):
            alone = {name: each[1:, part] for name, each in numbers.items()}
            output, state = OURS(**alone, initial_state=state, **options)
            pieces.append(output)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat(pieces, 1), expected[1:])
    assert torch.equal(state, last[1:])


def test_what_it_does_not_know_is_transformers_own() -> None:
    shape = SHAPES[0]
    numbers, options = given(shape, torch.float32), ways(shape)
    start = options["initial_state"].clone()
    OURS(**repeated(numbers, shape[3] // shape[2]), **options)  # somebody may learn from it
    assert torch.equal(options["initial_state"], start)
    with torch.inference_mode():
        odd = given((1, 1, 1, 1, 16, 20), torch.float32)
        assert torch.equal(OURS(**odd)[0], ONE(**odd)[0])
        if at_least("transformers", "5.24"):  # older ones leave it out silently
            with pytest.raises(ValueError, match="packed"):
                OURS(**numbers, cu_seqlens=torch.tensor([0, 1]))
