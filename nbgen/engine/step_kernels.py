"""Triton kernels around a forward: copy a batch into a graph's input tensors, and find each row's likeliest token.

Needs triton: import it only where there is a GPU.
"""

import torch
import triton
import triton.language as tl

#: How many scores a program searches.
PART = 8192


@triton.jit(do_not_specialize=["width", "stride", "blocks"])
def place_row(
    given, newest, numbers, tables, width, stride, most, blocks, FIELDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Program (row): copies a row of `given` `[rows, width]` to FIELDS `numbers` `[FIELDS, most]` and a `tables` row.

    The first field is a token; a negative one, `-1 - row`, becomes that row's token in `newest` (`SampledTokens`).
    """
    row, fields = tl.program_id(0), tl.arange(0, 8)
    start, used = given + row * stride, fields < FIELDS
    values = tl.load(start + fields, mask=used, other=0).to(tl.int64)
    token = tl.load(start).to(tl.int64)
    awaited = tl.maximum(tl.load(newest + (-1 - token), mask=token < 0, other=0), 0)
    values = tl.where((fields == 0) & (token < 0), awaited, values)
    tl.store(numbers + fields * most + row, values, mask=used)
    for first in range(0, width - FIELDS, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < width - FIELDS
        tl.store(tables + row * blocks + columns, tl.load(start + FIELDS + columns, mask=inside), mask=inside)


@triton.jit
def best_of_part(scores, best, ids, size, stride, BLOCK: tl.constexpr):
    """Program (row, part): the part's greatest score and its id; the second half of `best`: whether any is finite."""
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scores + row.to(tl.int64) * stride + columns, mask=columns < size, other=float("-inf")).to(tl.float32)
    finite = tl.max((tl.abs(x) < float("inf")).to(tl.int32), 0)
    value, index = tl.max(tl.where(x == x, x, float("-inf")), 0, return_indices=True)
    place = row * parts + part
    tl.store(best + place, value)
    tl.store(best + tl.num_programs(0) * parts + place, finite.to(tl.float32))
    tl.store(ids + place, part * BLOCK + index)


@triton.jit
def best_of_row(output, best, ids, parts, none, BLOCK: tl.constexpr):
    """Program (row): the best of its parts, the first of equals; `none` where no score is finite."""
    row, indices = tl.program_id(0), tl.arange(0, BLOCK)
    inside, places = indices < parts, row * parts + indices
    values = tl.load(best + places, mask=inside, other=float("-inf"))
    finite = tl.load(best + tl.num_programs(0) * parts + places, mask=inside, other=0.0)
    _, winner = tl.max(values, 0, return_indices=True)
    found = tl.load(ids + row * parts + winner).to(tl.int64)
    tl.store(output + row, tl.where(tl.max(finite, 0) > 0, found, none))


def most_likely(scores: torch.Tensor, none: int) -> torch.Tensor:
    """The id `[rows]` of the greatest number of each row `[rows, vocab]`; `none` where none is finite."""
    rows, size = scores.shape
    parts = triton.cdiv(size, PART)
    best, ids = scores.new_empty(2, rows, parts, dtype=torch.float32), scores.new_empty(rows, parts, dtype=torch.int32)
    output = scores.new_empty(rows, dtype=torch.long)
    best_of_part[rows, parts](scores, best, ids, size, scores.stride(0), BLOCK=PART, num_warps=8)
    best_of_row[(rows,)](output, best, ids, parts, none, BLOCK=triton.next_power_of_2(parts), num_warps=1)
    return output
