"""Triton kernels of a decoder layer around its attention: norms, rotary positions, the gate, products of one row.

They round where transformers' own code does, except that a norm's result goes into a product of one row unrounded.
Shapes are fixed by the launch, so that launches can be captured in a CUDA graph.
"""

import triton
import triton.language as tl

from nbgen.engine.kernel_overlap import begin, follow, take_turn

#: Numbers that a thread loads at once.
EIGHT = tl.constexpr(8)


@triton.jit
def _silu(x):
    return x / (1 + tl.exp(-x))


@triton.jit
def add_and_norm(
    hidden, added, weight, output, size, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr
):  # fmt: skip
    """Program (row): adds `added` to `hidden` `[rows, size]`; `output` is the RMS norm (Zhang & Sennrich 2019)."""
    begin(OVERLAPS)
    columns = tl.arange(0, BLOCK)
    inside, places = columns < size, tl.program_id(0).to(tl.int64) * size + columns
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    follow(OVERLAPS)
    x = tl.load(hidden + places, mask=inside, other=0.0)
    if ADDS:
        x = (x.to(tl.float32) + tl.load(added + places, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(hidden + places, x, mask=inside)
    wide = x.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)).to(x.dtype).to(tl.float32)
    tl.store(output + places, (normed * weights).to(x.dtype), mask=inside)


@triton.jit
def _head_normed(x, scales, weights):
    return ((x.to(tl.float32) * scales).to(x.dtype).to(tl.float32) * weights).to(x.dtype)


@triton.jit
def turned(left, right, cosine, sine, norm, epsilon, columns, used, DIM: tl.constexpr, NORMED: tl.constexpr):
    """Both halves `[heads, columns]` of heads, rotated (Su et al. 2021); if NORMED, each head is normed first.

    `cosine` and `sine` `[1, columns]` are of `columns` that are `used`; `norm` has weights for both halves.
    """
    dtype = left.dtype
    if NORMED:
        squares = left.to(tl.float32) * left.to(tl.float32) + right.to(tl.float32) * right.to(tl.float32)
        scales = tl.rsqrt(tl.sum(squares, 1) / DIM + epsilon)[:, None]
        left = _head_normed(left, scales, wide(norm, columns, used))
        right = _head_normed(right, scales, wide(norm + DIM // 2, columns, used))
    left, right = left.to(tl.float32), right.to(tl.float32)
    return (left * cosine - right * sine).to(dtype), (right * cosine + left * sine).to(dtype)


@triton.jit
def halves(places, inside, DIM: tl.constexpr):
    """Both halves of the heads at `places`."""
    left = tl.load(places, mask=inside, other=0.0)
    return left, tl.load(places + DIM // 2, mask=inside, other=0.0)


@triton.jit
def wide(numbers, columns, used):
    """The `columns` of `numbers` as float32 `[1, columns]`."""
    return tl.load(numbers + columns, mask=used, other=0.0).to(tl.float32)[None, :]


@triton.jit
def turn_and_store(
    projected, keys, values, cosines, sines, positions, slots, query_norm, key_norm, epsilon, key_stride,
    key_head_stride, value_stride, value_head_stride, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    NORMED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Program (row, key head): rotate its queries in place, and write its rotated key and its value to their slot.

    `projected` `[rows, (GROUP + 2) * KV_HEADS * DIM]` has all queries, keys and values; `cosines` and `sines`
    `[positions, DIM / 2]`. NORMED queries and keys are normed first.
    """
    take_turn(OVERLAPS)
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads, columns = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_D)
    used, first = columns < DIM // 2, projected + row * ((GROUP + 2) * KV_HEADS * DIM)
    turn, slot = tl.load(positions + row) * (DIM // 2), tl.load(slots + row)
    cosine, sine = wide(cosines + turn, columns, used), wide(sines + turn, columns, used)
    places, inside = first + (kv_head * GROUP + heads) * DIM + columns[None, :], (heads < GROUP) & used[None, :]
    left, right = halves(places, inside, DIM)
    left, right = turned(left, right, cosine, sine, query_norm, epsilon, columns, used, DIM, NORMED)
    tl.store(places, left, mask=inside)
    tl.store(places + DIM // 2, right, mask=inside)
    new = first + (GROUP * KV_HEADS + kv_head) * DIM + columns[None, :]
    left, right = halves(new, used[None, :], DIM)
    left, right = turned(left, right, cosine, sine, key_norm, epsilon, columns, used, DIM, NORMED)
    key = keys + slot * key_stride + kv_head * key_head_stride + columns[None, :]
    tl.store(key, left, mask=used[None, :])
    tl.store(key + DIM // 2, right, mask=used[None, :])
    new += KV_HEADS * DIM
    value = values + slot * value_stride + kv_head * value_head_stride + columns[None, :]
    left, right = halves(new, used[None, :], DIM)
    tl.store(value, left, mask=used[None, :])
    tl.store(value + DIM // 2, right, mask=used[None, :])


@triton.jit
def gate(projected, output, size, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    """Program (row, part): `silu(g) * u` `[rows, size]` of `projected` `[rows, 2 * size]`, all g before all u."""
    take_turn(OVERLAPS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, row = columns < size, tl.program_id(0).to(tl.int64)
    places = projected + row * 2 * size + columns
    gates = tl.load(places, mask=inside, other=0.0)
    ups = tl.load(places + size, mask=inside, other=0.0).to(tl.float32)
    gated = _silu(gates.to(tl.float32)).to(gates.dtype).to(tl.float32) * ups
    tl.store(output + row * size + columns, gated.to(gates.dtype), mask=inside)


@triton.jit
def _columns(firsts, columns, used, inputs):
    """These columns of the weights, for outputs that are `used`; zeros beyond the last column."""
    return tl.load(firsts + columns[None, :], mask=used[:, None] & (columns < inputs)[None, :], other=0.0)


@triton.jit
def _products(numbers, x, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Products with `x` `[BLOCK_K]`, of which each eight neighbours are summed: one thread can do that alone."""
    products = numbers.to(tl.float32) * x[None, :]
    return tl.sum(tl.reshape(products, [BLOCK_N, BLOCK_K // EIGHT, EIGHT]), 2)


@triton.jit
def multiply_one_row(
    input, norm, weight, bias, added, output, inputs, outputs, epsilon, NORMED: tl.constexpr, GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Program (outputs): `input` `[inputs]` times `weight` `[outputs, inputs]`, read once, as fast as memory allows.

    NORMED takes the input's RMS norm. GATED: `weight` has twice as many rows, gates first, and the output is
    `silu(g) * u`. ADDS adds `added` `[outputs]`.
    """
    begin(OVERLAPS)
    rows, columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    firsts = weight + rows.to(tl.int64)[:, None] * inputs
    seconds = firsts + outputs.to(tl.int64) * inputs
    squares = tl.zeros([BLOCK_K], tl.float32)
    sums = tl.zeros([BLOCK_N, BLOCK_K // EIGHT], tl.float32)
    ups = tl.zeros([BLOCK_N, BLOCK_K // EIGHT], tl.float32)
    used = rows < outputs
    numbers = _columns(firsts, columns, used, inputs)
    if GATED:
        others = _columns(seconds, columns, used, inputs)
    follow(OVERLAPS)
    for first in range(0, inputs, BLOCK_K):
        here = first + columns
        x = tl.load(input + here, mask=here < inputs, other=0.0).to(tl.float32)
        following = _columns(firsts, here + BLOCK_K, used, inputs)
        if NORMED:
            squares += x * x
            x *= tl.load(norm + here, mask=here < inputs, other=0.0).to(tl.float32)
        sums += _products(numbers, x, BLOCK_N, BLOCK_K)
        if GATED:
            ups += _products(others, x, BLOCK_N, BLOCK_K)
            others = _columns(seconds, here + BLOCK_K, used, inputs)
        numbers = following
    scale = tl.rsqrt(tl.sum(squares, 0) / inputs + epsilon) if NORMED else 1.0
    dtype = output.dtype.element_ty
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
