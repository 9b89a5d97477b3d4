"""Triton kernels of paged attention: tiles of queries against the keys and values of their sequence's blocks.

A tile is up to BLOCK_M // GROUP consecutive queries of one sequence, with all query heads of one key head as rows of
the same matrix. A decode is a tile of one query, its keys cut into splits that are merged by their log-sum-exp (Dao et
al. 2023, "Flash-Decoding"); a prefill is many tiles without splits (Dao 2023, "FlashAttention-2"). Every shape is
fixed by the launch and every length is read on the device, so that launches can be captured in a CUDA graph.
"""

import triton
import triton.language as tl

from nbgen.engine.kernel_overlap import take_turn

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def nothing_seen(BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr):
    """The running softmax before any key: its sums, maxima (base 2) and weighted values."""
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return tl.zeros([BLOCK_M], tl.float32), highest, tl.zeros([BLOCK_M, BLOCK_V], tl.float32)


@triton.jit
def weigh(highest, logits):
    """New maxima, the new keys' weights, and the factor for the earlier keys' sums; `logits` `[rows, keys]`, base 2."""
    new_highest = tl.maximum(highest, tl.max(logits, 1))
    # A row that has seen no key yet keeps -inf: subtracting that would make NaN.
    shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    return new_highest, tl.exp2(logits - shift[:, None]), tl.exp2(highest - shift)


@triton.jit
def slots_of(table, positions, inside, PAGE: tl.constexpr):
    """Cache slots of the keys and values of those `positions` that are `inside`."""
    pages = tl.load(table + positions // PAGE, mask=inside, other=0)
    return pages.to(tl.int64) * PAGE + positions % PAGE


@triton.jit
def first_seen(position, sliding, chunk):
    """The first position that a query at `position` sees."""
    low = position * 0
    if sliding > 0:
        low = tl.maximum(low, position - sliding + 1)
    if chunk > 0:
        low = tl.maximum(low, position // chunk * chunk)
    return low


@triton.jit
def _fold(
    total, highest, weighted, query, row_positions, start, stop, table, keys, values, key_stride, value_stride, scale,
    softcap, sliding, chunk, MASKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add positions `start` to `stop` to the running softmax: its sums, maxima (base 2) and weighted values."""
    dims, value_dims = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    for first in range(start, stop, BLOCK_N):
        positions = first + tl.arange(0, BLOCK_N)
        inside = positions < stop
        slots = slots_of(table, positions, inside, PAGE)
        key = tl.load(
            keys + slots[None, :] * key_stride + dims[:, None],
            mask=inside[None, :] & (dims[:, None] < DIM),
            other=0.0,
        )
        logits = tl.dot(query, key, input_precision=PRECISION) * scale
        if HAS_SOFTCAP:
            logits = softcap * _tanh(logits / softcap)
        logits = logits * LOG2_E
        seen = inside[None, :]
        if MASKED:
            seen = seen & (positions[None, :] <= row_positions[:, None])
            if sliding > 0:
                seen = seen & (positions[None, :] > row_positions[:, None] - sliding)
            if chunk > 0:
                seen = seen & (positions[None, :] // chunk == row_positions[:, None] // chunk)
        logits = tl.where(seen, logits, float("-inf"))
        highest, weights, decay = weigh(highest, logits)
        value = tl.load(
            values + slots[:, None] * value_stride + value_dims[None, :],
            mask=inside[:, None] & (value_dims[None, :] < VALUE_DIM),
            other=0.0,
        )
        total = total * decay + tl.sum(weights, 1)
        weighted = weighted * decay[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    return total, highest, weighted


@triton.jit
def _share(
    first_position, count, split, splits, sliding, chunk, HAS_WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """A split's part of the keys that a tile's queries see: its start, where masking begins, and its end.

    Every query sees all keys up to the first query's own position, unless there is a window.
    """
    low, high = 0, first_position + count
    if HAS_WINDOW:
        low = first_seen(first_position, sliding, chunk)
    share = tl.cdiv(tl.cdiv(high - low, splits), BLOCK_N) * BLOCK_N
    start = low + split * share
    stop = tl.minimum(start + share, high)
    masked_from = start
    if not HAS_WINDOW:
        masked_from += tl.maximum(tl.minimum(stop, first_position + 1) - start, 0) // BLOCK_N * BLOCK_N
    return start, masked_from, stop


@triton.jit
def _with_sinks(total, highest, weighted, sinks):
    """Add each row's sink to the running softmax: a weight without a value, which may exceed every key's."""
    shift = tl.maximum(highest, sinks)
    decay = tl.exp2(highest - shift)
    return total * decay + tl.exp2(sinks - shift), weighted * decay[:, None]


@triton.jit
def decode_tiles(tiles, lengths):
    """Program (row): the tile `[4]` of one decode; `lengths` `[rows]` of the sequences give its position."""
    row, field = tl.program_id(0), tl.arange(0, 4)
    position = tl.load(lengths + row).to(tl.int32) - 1
    tl.store(tiles + row * 4 + field, tl.where(field == 1, 1, tl.where(field == 2, position, row)))


@triton.jit(do_not_specialize=["table_stride", "splits", "sliding", "chunk"])
def attend_tiles(
    output, log_sums, queries, keys, values, sinks, tiles, tables, query_row_stride, query_head_stride, key_stride,
    key_head_stride, value_stride, value_head_stride, table_stride, heads, scale, softcap, sliding, chunk, splits,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, PAGE: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Program (tile, key head, split). `tiles` `[tiles, 4]`: first row, queries, first position, row of `tables`.

    Without SPLIT `output` is `[rows, heads, VALUE_DIM]`. With it, it is `[rows, heads, splits, VALUE_DIM]` in
    float32, each split normalized by itself, and `log_sums` `[rows, heads, splits]` has what `merge_splits` needs.
    """
    take_turn(OVERLAPS)
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + tile * 4)
    count = tl.load(tiles + tile * 4 + 1)
    first_position = tl.load(tiles + tile * 4 + 2)
    table = tables + tl.load(tiles + tile * 4 + 3).to(tl.int64) * table_stride

    lanes = tl.arange(0, BLOCK_M)
    rows, row_heads = first_row + lanes // GROUP, kv_head * GROUP + lanes % GROUP
    used = lanes // GROUP < count
    row_positions = first_position + lanes // GROUP
    dims, value_dims = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    places = rows.to(tl.int64) * query_row_stride + row_heads * query_head_stride
    inside = used[:, None] & (dims[None, :] < DIM)
    query = tl.load(queries + places[:, None] + dims[None, :], mask=inside, other=0.0)
    start, masked_from, stop = _share(first_position, count, split, splits, sliding, chunk, HAS_WINDOW, BLOCK_N)
    total, highest, weighted = nothing_seen(BLOCK_M, BLOCK_V)
    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride
    if not HAS_WINDOW:
        total, highest, weighted = _fold(
            total, highest, weighted, query, row_positions, start, masked_from, table, keys, values,
            key_stride, value_stride, scale, softcap, sliding, chunk,
            False, HAS_SOFTCAP, PAGE, DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, PRECISION,
        )  # fmt: skip
    total, highest, weighted = _fold(
        total, highest, weighted, query, row_positions, masked_from, stop, table, keys, values,
        key_stride, value_stride, scale, softcap, sliding, chunk,
        True, HAS_SOFTCAP, PAGE, DIM, VALUE_DIM, BLOCK_N, BLOCK_D, BLOCK_V, PRECISION,
    )  # fmt: skip

    # A row that saw no key is either unused or merged with weight 0.
    nonzero = tl.where(total == 0, 1.0, total)
    cells = rows.to(tl.int64) * heads + row_heads
    if SPLIT:
        cells = cells * splits + split
        tl.store(log_sums + cells, tl.where(total == 0, float("-inf"), highest + tl.log2(nonzero)), mask=used)
    elif HAS_SINKS:
        sink = tl.load(sinks + row_heads, mask=used, other=0.0).to(tl.float32) * LOG2_E
        nonzero, weighted = _with_sinks(total, highest, weighted, sink)
    tl.store(
        output + cells[:, None] * VALUE_DIM + value_dims[None, :],
        (weighted / nonzero[:, None]).to(output.dtype.element_ty),
        mask=used[:, None] & (value_dims[None, :] < VALUE_DIM),
    )


@triton.jit(do_not_specialize=["splits"])
def merge_splits(
    output, parts, log_sums, sinks, heads, splits, HAS_SINKS: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Program (row, head): `[rows, heads, VALUE_DIM]` from the splits that `attend_tiles` wrote."""
    take_turn(OVERLAPS)
    cell = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    indices, value_dims = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_V)
    sums = tl.load(log_sums + cell * splits + indices, mask=indices < splits, other=float("-inf"))
    highest = tl.max(sums, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + tl.program_id(1)).to(tl.float32) * LOG2_E
        highest = tl.maximum(highest, sink)
    weights = tl.exp2(sums - highest)
    total = tl.sum(weights, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - highest)
    part = tl.load(
        parts + (cell * splits + indices[:, None]) * VALUE_DIM + value_dims[None, :],
        mask=(indices[:, None] < splits) & (value_dims[None, :] < VALUE_DIM),
        other=0.0,
    )
    merged = tl.sum(part * weights[:, None], 0) / total
    tl.store(output + cell * VALUE_DIM + value_dims, merged.to(output.dtype.element_ty), mask=value_dims < VALUE_DIM)
