"""Attention on the CPU, in matrix products over gathered blocks.

The cache is head-major on the CPU: copying a sequence's blocks side by side (whole blocks, one `memcpy` each) gives
keys that a batched product reads without another copy. Decodes of similar length are computed together, as many as
fit the processor's caches; the blocks of a shared prefix are read once for all. Prompts are computed in tiles whose
scores fit the caches, too. Windows, soft caps and sinks are supported. Knows neither models nor requests.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Span, Step
from nbgen.engine.attention_window import Window

#: Bytes of keys gathered at once. Measured: larger batches do not fit the second-level cache and become slower.
GATHERED_BYTES = 4 << 20
#: Shortest prefix shared by several decodes that is read once for all of them.
SHARED_TOKENS = 64
#: Scores of one tile of a prompt. Measured: torch's flash kernel takes 1.5 to 2.4 times as long without AMX.
SCORES_BYTES = 3 << 19
FEWEST_ROWS = 16
#: Bytes of a single sequence's keys up to which torch's own attention, in place, is faster than copies and products.
FEW_BYTES = 300_000


class Group(NamedTuple):
    """Decodes that are computed together: their `rows` (None for all), and blocks.

    All of them begin with the `shared` blocks, which are read once; `blocks` `[B * n]` are those that follow. `unseen`
    `[B, 1, keys]` masks the keys that do not count, whatever their slots hold. `run` are the slots that a single
    sequence sees, if these are contiguous.
    """

    rows: torch.Tensor | None
    size: int
    shared: torch.Tensor | None
    blocks: torch.Tensor
    unseen: torch.Tensor
    run: slice | None


class CpuAttention(ReferenceAttention):
    """Expects a head-major cache; `gathered_bytes` bounds the keys of one group."""

    def __init__(self, gathered_bytes: int = GATHERED_BYTES) -> None:
        self._gathered_bytes = gathered_bytes

    def decode(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        most = self.most(layer)
        groups = step.once(("groups", window, most), lambda: groups_of(step, window, most))
        if groups[0].rows is None:
            return attend(query, layer, groups[0], step.cache.block_size, scores)
        output = query.new_empty(*query.shape[:2], layer.values.shape[-1])
        for group in groups:
            output[group.rows] = attend(query[group.rows], layer, group, step.cache.block_size, scores)
        return output

    def most(self, layer: Layer) -> int:
        """Most tokens of this layer that are gathered at once."""
        return max(1, self._gathered_bytes // (math.prod(layer.keys.shape[1:]) * layer.keys.element_size()))

    def prefill(
        self, query: torch.Tensor, layer: Layer, span: Span, step: Step, window: Window, scores: Scores
    ) -> torch.Tensor:
        if span.blocks_for(window):
            return super().prefill(query, layer, span, step, window, scores)
        new, heads, _ = query.shape
        size, start = step.cache.block_size, span.length - new
        first = window.first(start) // size
        blocks = step.once(("blocks", window, span.start), lambda: torch.tensor(span.block_table[first:]))
        k, v = (_gather(t, blocks, size, query.dtype) for t in layer)
        output = query.new_empty(new, heads, v.shape[-1])
        rows = max(FEWEST_ROWS, SCORES_BYTES // (4 * heads * span.length))
        for begin in range(0, new, rows):
            end = min(begin + rows, new)
            positions = range(start + begin, start + end)
            seen = range(max(window.first(positions[0]), first * size), positions[-1] + 1)
            unseen = step.once(("unseen", window, span.start, rows, begin), partial(_tile, window, positions, seen))
            keys = slice(seen[0] - first * size, seen[-1] + 1 - first * size)
            output[begin:end] = _attend_tile(query[begin:end], k[:, keys], v[:, keys], unseen, scores)
        return output


def groups_of(step: Step, window: Window, most: int) -> list[Group]:
    """The decodes in groups of at most `most` gathered tokens, at most half of them padding."""
    size, spans = step.cache.block_size, step.decodes
    firsts = [window.first(span.length - 1) // size for span in spans]
    tables = [s.block_table[first : -(-s.length // size)] for s, first in zip(spans, firsts, strict=True)]
    parts = [
        (shared, part)
        for shared, rows in shared_prefix_groups(tables, firsts, size)
        for part in _of_like_length(rows, [len(table) - shared for table in tables], most // size)
    ]
    return [_group(step, window, rows, tables, firsts, shared) for shared, rows in parts]


def shared_prefix_groups(tables: list[list[int]], firsts: list[int], size: int) -> list[tuple[int, list[int]]]:
    """Sets of rows, each with the number of leading blocks that their tables share; 0 if too few for a product.

    Rows share blocks only if they also begin at the same block (`firsts`).
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for row, (table, first) in enumerate(zip(tables, firsts, strict=True)):
        alike.setdefault((first, table[0]), []).append(row)
    sets, alone = [], []
    for rows in alike.values():
        shared = _common([tables[row][:-1] for row in rows]) if len(rows) > 1 else 0
        if shared * size < SHARED_TOKENS:
            alone += rows
        else:
            sets.append((shared, rows))
    return [*sets, (0, sorted(alone))] if alone else sets


def _common(tables: list[list[int]]) -> int:
    """Blocks that all tables begin with."""
    return next(
        (i for i, blocks in enumerate(zip(*tables, strict=False)) if len(set(blocks)) > 1), min(map(len, tables))
    )


def _of_like_length(rows: list[int], counts: list[int], most: int) -> list[list[int]]:
    parts: list[list[int]] = []
    for row in sorted(rows, key=counts.__getitem__, reverse=True):
        longest = counts[parts[-1][0]] if parts else 0
        if parts and (len(parts[-1]) + 1) * longest <= most and 2 * counts[row] >= longest:
            parts[-1].append(row)
        else:
            parts.append([row])
    return [sorted(part) for part in parts]


def _group(
    step: Step, window: Window, rows: list[int], tables: list[list[int]], firsts: list[int], shared: int
) -> Group:
    size, spans = step.cache.block_size, [step.decodes[row] for row in rows]
    longest = max(len(tables[row]) for row in rows)
    own = [tables[row][shared:] + [0] * (longest - len(tables[row])) for row in rows]
    last = torch.tensor([[span.length - 1] for span in spans])
    keys = torch.tensor([[firsts[row] * size] for row in rows]) + torch.arange(longest * size)
    return Group(
        rows=None if len(rows) == len(step.decodes) else torch.tensor(rows),
        size=len(rows),
        shared=torch.tensor(tables[rows[0]][:shared]) if shared else None,
        blocks=torch.tensor(own).flatten(),
        unseen=_unseen(window, last, keys),
        run=_run(tables[rows[0]], window.first(spans[0].length - 1), spans[0].length, size) if len(rows) == 1 else None,
    )


def _run(blocks: list[int], first: int, length: int, size: int) -> slice | None:
    """The slots of the positions from `first` on, if the `blocks` that hold them are contiguous."""
    if blocks != list(range(blocks[0], blocks[0] + len(blocks))):
        return None
    begin = blocks[0] * size + first % size
    return slice(begin, begin + length - first)


def _gather(tensor: torch.Tensor, blocks: torch.Tensor, block_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Those blocks of a layer's keys or values `[slots, kv_heads, D]`, as `[kv_heads, tokens, D]` of this type."""
    _, heads, dim = tensor.shape
    by_block = tensor.transpose(0, 1).view(heads, -1, block_size * dim)
    return by_block.index_select(1, blocks).view(heads, -1, dim).to(dtype)


def attend(query: torch.Tensor, layer: Layer, group: Group, block_size: int, scores: Scores) -> torch.Tensor:
    """Query `[B, heads, D]`, one position each. Query heads that share a key head are rows of one product."""
    (batch, heads, dim), kv_heads = query.shape, layer.keys.shape[1]
    if group.run is not None and scores.softcap is None and scores.sinks is None:
        k, v = (t[group.run] for t in layer)
        if k.numel() * query.element_size() <= FEW_BYTES:
            return _attend_run(query, k.to(query.dtype), v.to(query.dtype), scores)
    k, v = (_gather(t, group.blocks, block_size, query.dtype).view(kv_heads * batch, -1, t.shape[-1]) for t in layer)
    rows = query.view(batch, kv_heads, -1, dim).transpose(0, 1).reshape(kv_heads, -1, dim)
    logits = torch.bmm(rows.reshape(kv_heads * batch, -1, dim), k.transpose(1, 2)).view(
        kv_heads, batch, heads // kv_heads, -1
    )
    if group.shared is None:
        weights = _softmax(logits, group.unseen, scores).to(v.dtype)
        output = _weighed(weights.view(kv_heads * batch, -1, k.shape[1]), v, group.unseen)
    else:
        shared_k, shared_v = (_gather(t, group.shared, block_size, query.dtype) for t in layer)
        before = torch.bmm(rows, shared_k.transpose(1, 2)).view(*logits.shape[:3], -1)
        weights = _softmax(torch.cat([before, logits], dim=-1), group.unseen, scores).to(v.dtype)
        before, own = weights.split([shared_k.shape[1], k.shape[1]], dim=-1)
        unseen = group.unseen[..., shared_k.shape[1] :]
        output = _weighed(own.reshape(kv_heads * batch, -1, k.shape[1]), v, unseen)
        output += torch.bmm(before.reshape(kv_heads, -1, shared_k.shape[1]), shared_v).view(output.shape)
    return output.view(kv_heads, batch, -1, v.shape[-1]).transpose(0, 1).reshape(batch, heads, -1)


def _attend_run(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: Scores) -> torch.Tensor:
    """One query `[1, heads, D]` against `[L, kv_heads, D]`, without copying these."""
    grouped, k, v = query.view(1, k.shape[1], -1, query.shape[-1]), k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    return scaled_dot_product_attention(grouped, k, v, scale=scores.scaling).reshape(1, query.shape[1], -1)


def _weighed(weights: torch.Tensor, v: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
    """Weighted sums of `v` `[kv_heads * B, L, D]`. Unseen slots may hold NaN, which a weight of 0 does not make 0."""
    output = torch.bmm(weights, v)
    if output.isfinite().all():
        return output
    return torch.bmm(weights, v.unflatten(0, (-1, len(unseen))).masked_fill(unseen.mT, 0).flatten(0, 1))


def _softmax(logits: torch.Tensor, unseen: torch.Tensor, scores: Scores) -> torch.Tensor:
    """Float32 probabilities of `logits` `[kv_heads, B, group, L]`."""
    logits = logits.float().mul_(scores.scaling)
    if scores.softcap is not None:
        logits = logits.div_(scores.softcap).tanh_().mul_(scores.softcap)
    logits.masked_fill_(unseen, float("-inf"))
    if scores.sinks is None:
        return torch.softmax(logits, dim=-1)
    sinks = scores.sinks.float().view(logits.shape[0], 1, -1, 1).expand(*logits.shape[:3], 1)
    return torch.softmax(torch.cat([logits, sinks], dim=-1), dim=-1)[..., :-1].contiguous()


def _tile(window: Window, positions: range, keys: range) -> torch.Tensor:
    return _unseen(window, torch.tensor(positions)[:, None], torch.tensor(keys)[None])


def _unseen(window: Window, positions: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """`[queries, 1, keys]`: the keys that may not be seen."""
    return ~window.mask(positions, keys)[:, None]


def _attend_tile(
    query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, unseen: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """Queries `[T, heads, D]` of one sequence against `k` and `v` `[kv_heads, L, D]`."""
    (new, heads, dim), kv_heads = query.shape, k.shape[0]
    rows = query.view(new, kv_heads, -1, dim).transpose(0, 1)
    logits = torch.bmm(rows.reshape(kv_heads, -1, dim), k.transpose(1, 2))
    weights = _softmax(logits.view(kv_heads, new, heads // kv_heads, -1), unseen, scores).to(v.dtype)
    output = torch.bmm(weights.view(logits.shape), v)
    return output.view(kv_heads, new, -1, v.shape[-1]).transpose(0, 1).reshape(new, heads, -1)
