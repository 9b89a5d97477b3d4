"""The Triton kernel of a decode's attention: from a layer's projections to its merged heads, in one launch.

A program has the cached keys of one key head of one sequence, or a split of them. It loads the first of them while the
previous kernel still runs; then it rotates the query and attends to them. The newest key, from the projections, is
rotated, attended to and written to the cache; if keys are split, an additional program does that. The program that ends
last merges all splits by their log-sum-exp (Dao et al. 2023, "Flash-Decoding"). Shapes are fixed by the launch and
lengths are read on the device, so that a CUDA graph can hold it.
"""

import triton
import triton.language as tl

from nbgen.engine.attention_kernels import LOG2_E, first_seen, nothing_seen, slots_of, weigh
from nbgen.engine.decoder_kernels import halves, turned, wide
from nbgen.engine.kernel_overlap import begin, follow


@triton.jit
def _cached(
    keys, values, table, positions, stop, key_stride, value_stride, columns, used, dims, PAGE: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    """Both halves `[columns, positions]` of the keys before `stop`, and the values `[positions, dims]`."""
    inside = positions < stop
    slots = slots_of(table, positions, inside, PAGE)
    places, there = keys + slots[None, :] * key_stride + columns[:, None], inside[None, :] & used[:, None]
    left, right = halves(places, there, DIM)
    value = values + slots[:, None] * value_stride + dims[None, :]
    return left, right, tl.load(value, mask=inside[:, None] & (dims < DIM)[None, :], other=0.0)


@triton.jit
def _meet(
    total, highest, weighted, query_left, query_right, left, right, value, inside, scale, PRECISION: tl.constexpr
):
    """Add keys to the running softmax: its sums, maxima (base 2) and weighted values."""
    logits = tl.dot(query_left, left, input_precision=PRECISION)
    logits = tl.dot(query_right, right, logits, input_precision=PRECISION)
    logits = tl.where(inside[None, :], logits * (scale * LOG2_E), float("-inf"))
    highest, weights, decay = weigh(highest, logits)
    total = total * decay + tl.sum(weights, 1)
    weighted = weighted * decay[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
    return total, highest, weighted


@triton.jit
def _meet_rest(
    total, highest, weighted, query_left, query_right, keys, values, table, start, stop, key_stride, value_stride,
    columns, used, dims, scale, PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the cached keys from `start` to `stop`."""
    for here in range(start, stop, BLOCK_N):
        positions = here + tl.arange(0, BLOCK_N)
        left, right, value = _cached(
            keys, values, table, positions, stop, key_stride, value_stride, columns, used, dims, PAGE, DIM
        )  # fmt: skip
        total, highest, weighted = _meet(
            total, highest, weighted, query_left, query_right, left, right, value, positions < stop, scale, PRECISION
        )
    return total, highest, weighted


@triton.jit
def _meet_newest(total, highest, weighted, query_left, query_right, left, right, value, scale):
    """Add the newest key, which all queries see."""
    products = query_left.to(tl.float32) * left.to(tl.float32) + query_right.to(tl.float32) * right.to(tl.float32)
    logits = tl.sum(products, 1) * (scale * LOG2_E)
    new_highest = tl.maximum(highest, logits)
    weights, decay = tl.exp2(logits - new_highest), tl.exp2(highest - new_highest)
    weighted = weighted * decay[:, None] + weights.to(value.dtype).to(tl.float32)[:, None] * value.to(tl.float32)
    return total * decay + weights, new_highest, weighted


@triton.jit
def _projected(
    projected, row, kv_head, newest, cosine, sine, query_norm, epsilon, columns, used, dims, mine,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NORMED: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Both halves of the rotated queries `[BLOCK_M, columns]`; if `newest`, the new key's and its value, else zeros."""
    first = projected + row * ((GROUP + 2) * KV_HEADS * DIM)
    places = first + (kv_head * GROUP + tl.arange(0, BLOCK_M))[:, None] * DIM + columns[None, :]
    query_left, query_right = halves(places, mine[:, None] & used[None, :], DIM)
    new, limit = first + (GROUP * KV_HEADS + kv_head) * DIM, tl.where(newest, DIM, 0)
    left, right = halves(new + columns[None, :], (columns < limit // 2)[None, :], DIM)
    value = tl.load(new + KV_HEADS * DIM + dims[None, :], mask=(dims < limit)[None, :], other=0.0)
    query_left, query_right = turned(
        query_left, query_right, cosine, sine, query_norm, epsilon, columns, used, DIM, NORMED
    )
    return query_left, query_right, left, right, value


@triton.jit
def _keep(keys, values, slot, left, right, value, key_stride, value_stride, columns, used, dims, DIM: tl.constexpr):
    """Write the newest key's halves `[1, columns]` and value `[1, dims]` to the cache."""
    key = keys + slot * key_stride + columns[None, :]
    tl.store(key, left, mask=used[None, :])
    tl.store(key + DIM // 2, right, mask=used[None, :])
    tl.store(values + slot * value_stride + dims[None, :], value, mask=(dims < DIM)[None, :])


@triton.jit
def _share(length, split, splits, sliding, chunk, BLOCK_N: tl.constexpr):
    """Where a split of the keys before the newest begins and ends, and how many splits have keys."""
    last = length - 1
    low = first_seen(last, sliding, chunk)
    share = tl.maximum(tl.cdiv(tl.cdiv(last - low, splits), BLOCK_N) * BLOCK_N, BLOCK_N)
    start = low + split * share
    return start, tl.minimum(start + share, last), tl.cdiv(last - low, share)


@triton.jit
def _merge(output, parts, log_sums, cell, room, count, dims, DIM: tl.constexpr, BLOCK_S: tl.constexpr):
    """Merge one head from `count` of its `room` parts, past the L1 cache: other multiprocessors wrote them."""
    indices, inside = tl.arange(0, BLOCK_S), dims < DIM
    there = indices < count
    sums = tl.load(log_sums + cell * room + indices, mask=there, other=float("-inf"), cache_modifier=".cg")
    places = parts + (cell * room + indices[:, None]) * DIM + dims[None, :]
    part = tl.load(places, mask=there[:, None] & inside[None, :], other=0.0, cache_modifier=".cg")
    weights = tl.exp2(sums - tl.max(sums, 0))
    merged = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(output + cell * DIM + dims, merged.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _leave(
    output, parts, log_sums, arrivals, result, log_sum, row, kv_head, place, room, count, dims, mine,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Write a split's part at its `place`; the last of `count` programs to do so merges all parts."""
    first = row * (GROUP * KV_HEADS) + kv_head * GROUP
    places = (first + tl.arange(0, BLOCK_M)) * room + place
    tl.store(log_sums + places, log_sum, mask=mine)
    tl.store(parts + places[:, None] * DIM + dims[None, :], result, mask=mine[:, None] & (dims < DIM)[None, :])
    tl.debug_barrier()
    arrived = arrivals + row * KV_HEADS + kv_head
    if tl.atomic_add(arrived, 1, sem="acq_rel") == count - 1:
        tl.store(arrived, 0)
        for lane in tl.static_range(GROUP):
            _merge(output, parts, log_sums, first + lane, room, count, dims, DIM, BLOCK_S)


@triton.jit(do_not_specialize=["table_stride", "splits", "sliding", "chunk"])
def attend_newest(
    output, parts, log_sums, arrivals, projected, keys, values, cosines, sines, positions, slots, lengths, tables,
    query_norm, key_norm, epsilon, key_stride, key_head_stride, value_stride, value_head_stride, table_stride, scale,
    sliding, chunk, splits, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NORMED: tl.constexpr,
    SPLIT: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_S: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Program (row, key head, split): `output` `[rows, heads, DIM]` of the newest token of each sequence.

    `projected` `[rows, (GROUP + 2) * KV_HEADS * DIM]` has all queries, keys and values; `cosines` and `sines` are
    `[positions, DIM / 2]`; `lengths` `[rows]` include the newest token. SPLIT adds one program a key head, with room
    in `parts` `[rows, heads, splits + 1, DIM]` and `log_sums` (no DIM); `arrivals` `[rows, KV_HEADS]` must be zeros.
    """
    begin(OVERLAPS)
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    start, stop, filled = _share(tl.load(lengths + row).to(tl.int32), split, splits, sliding, chunk, BLOCK_N)
    if (split >= filled) & (split < splits - 1 + SPLIT):
        return
    table = tables + row * table_stride
    keys, values = keys + kv_head * key_head_stride, values + kv_head * value_head_stride
    columns, dims, first = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), start + tl.arange(0, BLOCK_N)
    used, there = columns < DIM // 2, first < stop
    left, right, value = _cached(
        keys, values, table, first, stop, key_stride, value_stride, columns, used, dims, PAGE, DIM
    )  # fmt: skip
    turn, slot = tl.load(positions + row) * (DIM // 2), tl.load(slots + row)
    cosine, sine = wide(cosines + turn, columns, used), wide(sines + turn, columns, used)
    follow(OVERLAPS)
    newest, mine = split == splits - 1 + SPLIT, tl.arange(0, BLOCK_M) < GROUP
    query_left, query_right, new_left, new_right, new_value = _projected(
        projected, row, kv_head, newest, cosine, sine, query_norm, epsilon, columns, used, dims, mine, GROUP, KV_HEADS,
        DIM, NORMED, BLOCK_M,
    )  # fmt: skip
    total, highest, weighted = nothing_seen(BLOCK_M, BLOCK_V)
    if start < stop:
        total, highest, weighted = _meet(
            total, highest, weighted, query_left, query_right, left, right, value, there, scale, PRECISION
        )
    total, highest, weighted = _meet_rest(
        total, highest, weighted, query_left, query_right, keys, values, table, start + BLOCK_N, stop, key_stride,
        value_stride, columns, used, dims, scale, PAGE, DIM, BLOCK_N, PRECISION,
    )  # fmt: skip
    if newest:
        new_left, new_right = turned(new_left, new_right, cosine, sine, key_norm, epsilon, columns, used, DIM, NORMED)
        _keep(
            keys, values, slot, new_left, new_right, new_value, key_stride, value_stride, columns, used, dims, DIM
        )  # fmt: skip
        total, highest, weighted = _meet_newest(
            total, highest, weighted, query_left, query_right, new_left, new_right, new_value, scale
        )
    result = weighted / total[:, None]
    if SPLIT:
        _leave(
            output, parts, log_sums, arrivals, result, highest + tl.log2(total), row, kv_head,
            tl.minimum(split, filled), splits + 1, filled + 1, dims, mine, GROUP, KV_HEADS, DIM, BLOCK_M, BLOCK_S,
        )  # fmt: skip
    else:
        cells = row * (GROUP * KV_HEADS) + kv_head * GROUP + tl.arange(0, BLOCK_M)
        inside = mine[:, None] & (dims < DIM)[None, :]
        tl.store(output + cells[:, None] * DIM + dims[None, :], result.to(output.dtype.element_ty), mask=inside)
