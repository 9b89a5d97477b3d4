"""Triton kernels of a decoder layer around its attention: norms, rotary positions, the gate, products of one row.

They round where transformers' own code does, except that a norm's result goes into a product of one row as it is.
Shapes are fixed by the launch, so that launches can be captured in a CUDA graph.
"""

import triton
import triton.language as tl


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def add_and_norm(hidden, added, weight, output, size, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row): `hidden` `[rows, size]` takes up `added`; `output` is its RMS norm (Zhang & Sennrich 2019)."""
    columns = tl.arange(0, BLOCK)
    inside, places = columns < size, tl.program_id(0).to(tl.int64) * size + columns
    x = tl.load(hidden + places, mask=inside, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(added + places, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(hidden + places, x, mask=inside)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)).to(x.dtype).to(tl.float32)
    weighted = normed * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + places, weighted.to(x.dtype), mask=inside)


@triton.jit
def _head_normed(x, scales, query_norm, key_norm, is_key, columns, used):
    """`x` `[heads, columns]` of queries and a key, each normed with its own weights."""
    query = tl.load(query_norm + columns, mask=used, other=0.0).to(tl.float32)[None, :]
    key = tl.load(key_norm + columns, mask=used, other=0.0).to(tl.float32)[None, :]
    normed = (x.to(tl.float32) * scales).to(x.dtype).to(tl.float32)
    return (normed * tl.where(is_key, key, query)).to(x.dtype)


@triton.jit
def turn_and_store(
    projected, keys, values, cosines, sines, positions, slots, query_norm, key_norm, epsilon, key_stride,
    key_head_stride, value_stride, value_head_stride, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    NORMED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Program (row, key head): turn its queries in place (Su et al. 2021), and its key and value into their slot.

    `projected` `[rows, (GROUP + 2) * KV_HEADS * DIM]` has all queries, keys and values; `cosines` and `sines`
    `[positions, DIM / 2]`. NORMED queries and keys are normed first, each head by itself.
    """
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads, halves = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    is_key, used = (heads == GROUP)[:, None], halves < DIM // 2
    first = projected + row * ((GROUP + 2) * KV_HEADS * DIM)
    numbers = tl.where(heads == GROUP, GROUP * KV_HEADS + kv_head, kv_head * GROUP + heads)
    places, inside = first + numbers[:, None] * DIM + halves[None, :], (heads <= GROUP)[:, None] & used[None, :]
    left = tl.load(places, mask=inside, other=0.0)
    right = tl.load(places + DIM // 2, mask=inside, other=0.0)
    dtype = left.dtype
    if NORMED:
        squares = left.to(tl.float32) * left.to(tl.float32) + right.to(tl.float32) * right.to(tl.float32)
        scales = tl.rsqrt(tl.sum(squares, 1) / DIM + epsilon)[:, None]
        left = _head_normed(left, scales, query_norm, key_norm, is_key, halves, used)
        right = _head_normed(right, scales, query_norm + DIM // 2, key_norm + DIM // 2, is_key, halves, used)
    left, right = left.to(tl.float32), right.to(tl.float32)
    turn = tl.load(positions + row) * (DIM // 2) + halves
    cosine = tl.load(cosines + turn, mask=used, other=0.0).to(tl.float32)[None, :]
    sine = tl.load(sines + turn, mask=used, other=0.0).to(tl.float32)[None, :]
    slot = tl.load(slots + row)
    key = keys + slot * key_stride + kv_head * key_head_stride + halves[None, :] + heads[:, None] * 0
    value = values + slot * value_stride + kv_head * value_head_stride + halves
    for part in tl.static_range(2):
        turned = left * cosine - right * sine if part == 0 else right * cosine + left * sine
        behind = part * (DIM // 2)
        tl.store(places + behind, turned.to(dtype), mask=inside & (heads < GROUP)[:, None])
        tl.store(key + behind, turned.to(dtype), mask=inside & is_key)
        new = first + ((GROUP + 1) * KV_HEADS + kv_head) * DIM + behind + halves
        tl.store(value + behind, tl.load(new, mask=used), mask=used)


@triton.jit
def gate(projected, output, size, BLOCK: tl.constexpr):
    """Program (row, part): `silu(g) * u` `[rows, size]` of `projected` `[rows, 2 * size]`, all g before all u."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, row = columns < size, tl.program_id(0).to(tl.int64)
    places = projected + row * 2 * size + columns
    gates = tl.load(places, mask=inside, other=0.0)
    ups = tl.load(places + size, mask=inside, other=0.0).to(tl.float32)
    gated = _silu(gates.to(tl.float32)).to(gates.dtype).to(tl.float32) * ups
    tl.store(output + row * size + columns, gated.to(gates.dtype), mask=inside)


@triton.jit
def multiply_one_row(
    input, norm, weight, bias, added, output, inputs, outputs, epsilon, NORMED: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Program (outputs): `input` `[inputs]` through `weight` `[outputs, inputs]`, read once, as fast as memory allows.

    NORMED takes the input's RMS norm. GATED has twice as many outputs, gates before the rest, and is `silu(g) * u`
    of them. ADDS puts `added` `[outputs]` on top.
    """
    rows, columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    starts = rows.to(tl.int64)[:, None] * inputs
    squares = tl.zeros([BLOCK_K], tl.float32)
    sums = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    ups = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in range(0, inputs, BLOCK_K):
        here = first + columns
        inside = (rows < outputs)[:, None] & (here < inputs)[None, :]
        numbers = tl.load(weight + starts + here[None, :], mask=inside, other=0.0)
        if GATED:
            others = tl.load(weight + outputs.to(tl.int64) * inputs + starts + here[None, :], mask=inside, other=0.0)
        x = tl.load(input + here, mask=here < inputs, other=0.0).to(tl.float32)
        if NORMED:
            squares += x * x
            x *= tl.load(norm + here, mask=here < inputs, other=0.0).to(tl.float32)
        sums += numbers.to(tl.float32) * x[None, :]
        if GATED:
            ups += others.to(tl.float32) * x[None, :]
    scale = tl.rsqrt(tl.sum(squares, 0) / inputs + epsilon) if NORMED else 1.0
    dtype = output.dtype.element_ty
    used = rows < outputs
    result = tl.sum(sums, 1) * scale
    if HAS_BIAS:
        result += tl.load(bias + rows, mask=used, other=0.0).to(tl.float32)
    result = result.to(dtype).to(tl.float32)
    if GATED:
        up = tl.sum(ups, 1) * scale
        if HAS_BIAS:
            up += tl.load(bias + outputs + rows, mask=used, other=0.0).to(tl.float32)
        result = _silu(result).to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)
    if ADDS:
        result += tl.load(added + rows, mask=used, other=0.0).to(tl.float32)
    tl.store(output + rows, result.to(dtype), mask=used)
