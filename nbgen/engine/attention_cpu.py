"""Attention on the CPU, in matrix products over gathered blocks.

The cache is head-major there, so that copying a sequence's blocks side by side (whole blocks, one `memcpy` each) gives
keys that a batched product reads as they lie. Sequences of like length are computed together, as many as fit the
processor's caches. Prompts go through torch's flash kernel: what is cached and what is new are two calls, merged by
their log-sum-exp (Dao et al. 2022, section 3.1). What the kernel lacks goes the reference's way.
"""

from typing import NamedTuple

import torch

from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Span, Step, Window, softmax_attention

#: Keys that are gathered at once. Measured: beyond it, batches leave the second-level cache and become slower.
GATHERED_BYTES = 4 << 20
#: Keys of a single sequence up to which the flash kernel, one call, is faster than two products and a softmax.
FEW_BYTES = 100_000


class Group(NamedTuple):
    """Decodes that are computed together: their `rows` (None for all), blocks `[B * n]`, and what they may see.

    `mask` `[B, 1, n * block_size]` is 0 where a key may be seen and minus infinity elsewhere; `seen` are the keys that
    the first of them sees.
    """

    rows: torch.Tensor | None
    size: int
    blocks: torch.Tensor
    mask: torch.Tensor
    seen: slice


class CpuAttention(ReferenceAttention):
    """Expects a head-major cache; `gathered_bytes` bounds the keys of one group."""

    def __init__(self, gathered_bytes: int = GATHERED_BYTES) -> None:
        self._gathered_bytes = gathered_bytes

    def decode(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        most = max(1, self._gathered_bytes // layer.keys[0].nbytes)
        groups = step.once(("groups", window, most), lambda: _groups(step, window, most))
        if groups[0].rows is None:
            return _attend(query, layer, groups[0], step.cache.block_size, scores)
        output = query.new_empty(*query.shape[:2], layer.values.shape[-1])
        for group in groups:
            output[group.rows] = _attend(query[group.rows], layer, group, step.cache.block_size, scores)
        return output

    def prefill(
        self, query: torch.Tensor, layer: Layer, span: Span, step: Step, window: Window, scores: Scores
    ) -> torch.Tensor:
        blocks = step.once(("blocks", span.start), lambda: torch.tensor(span.block_table))
        k, v = (_gather(t, blocks, step.cache.block_size)[:, : span.length] for t in layer)
        if window == Window() and _is_plain(layer, scores):
            return _causal(query.transpose(0, 1), k, v, scores.scaling).transpose(0, 1)
        mask = step.once((window, span.start), lambda: step.prefill_mask(span, window))
        return softmax_attention(query.transpose(0, 1)[None], k[None], v[None], mask, scores)[0].transpose(0, 1)


def _groups(step: Step, window: Window, most: int) -> list[Group]:
    """All decodes, in groups of at most `most` gathered tokens of which at most half are padding."""
    size, spans = step.cache.block_size, step.decodes
    firsts = [window.first(span.length - 1) // size for span in spans]
    counts = [-(-span.length // size) - first for span, first in zip(spans, firsts, strict=True)]
    parts: list[list[int]] = []
    for row in sorted(range(len(spans)), key=counts.__getitem__, reverse=True):
        longest = counts[parts[-1][0]] if parts else 0
        if parts and (len(parts[-1]) + 1) * longest * size <= most and 2 * counts[row] >= longest:
            parts[-1].append(row)
        else:
            parts.append([row])
    whole = len(parts) == 1
    return [_group(step, window, range(len(spans)) if whole else rows, firsts, whole) for rows in parts]


def _group(step: Step, window: Window, rows: list[int] | range, firsts: list[int], whole: bool) -> Group:
    size, spans = step.cache.block_size, [step.decodes[row] for row in rows]
    tables = [s.block_table[firsts[row] : -(-s.length // size)] for row, s in zip(rows, spans, strict=True)]
    longest = max(map(len, tables))
    blocks = torch.tensor([table + [0] * (longest - len(table)) for table in tables])
    last = torch.tensor([[span.length - 1] for span in spans])
    keys = torch.tensor([[firsts[row] * size] for row in rows]) + torch.arange(longest * size)
    mask = torch.zeros(keys.shape).masked_fill_(~window.mask(last, keys), float("-inf"))
    first, end = window.first(spans[0].length - 1), spans[0].length
    seen = slice(first - firsts[rows[0]] * size, end - firsts[rows[0]] * size)
    return Group(None if whole else torch.tensor(rows), len(spans), blocks.flatten(), mask[:, None], seen)


def _is_plain(layer: Layer, scores: Scores) -> bool:
    """Whether the flash kernel serves."""
    return scores.softcap is None and scores.sinks is None and layer.keys.shape[-1] == layer.values.shape[-1]


def _gather(tensor: torch.Tensor, blocks: torch.Tensor, block_size: int) -> torch.Tensor:
    """Those blocks of a layer's keys or values `[slots, kv_heads, D]`, as `[kv_heads, tokens, D]`."""
    _, heads, dim = tensor.shape
    by_block = tensor.transpose(0, 1).view(heads, -1, block_size * dim)
    return by_block.index_select(1, blocks).view(heads, -1, dim)


def _attend(query: torch.Tensor, layer: Layer, group: Group, block_size: int, scores: Scores) -> torch.Tensor:
    """Query `[B, heads, D]`, one position each. Heads that share a key head are rows of one product."""
    heads, kv_heads, dim = query.shape[1], layer.keys.shape[1], query.shape[2]
    k, v = (_gather(t, group.blocks, block_size).view(kv_heads * group.size, -1, t.shape[-1]) for t in layer)
    if group.size == 1 and k.nbytes <= FEW_BYTES and _is_plain(layer, scores):
        one = query.view(1, kv_heads, -1, dim)
        return _flash(one, k[None, :, group.seen], v[None, :, group.seen], scale=scores.scaling)[0].reshape(query.shape)
    grouped = query.view(group.size, kv_heads, -1, dim).transpose(0, 1)
    logits = torch.bmm(grouped.reshape(kv_heads * group.size, -1, dim), k.transpose(1, 2))
    weights = _softmax(logits.view(kv_heads, group.size, heads // kv_heads, -1), group.mask, scores)
    output = torch.bmm(weights.view(logits.shape).to(v.dtype), v)
    return output.view(kv_heads, group.size, -1, v.shape[-1]).transpose(0, 1).reshape(group.size, heads, -1)


def _softmax(logits: torch.Tensor, mask: torch.Tensor, scores: Scores) -> torch.Tensor:
    """Float32 probabilities of `logits` `[kv_heads, B, group, L]`."""
    logits = logits.float().mul_(scores.scaling)
    if scores.softcap is not None:
        logits = logits.div_(scores.softcap).tanh_().mul_(scores.softcap)
    logits += mask
    if scores.sinks is None:
        return torch.softmax(logits, dim=-1)
    sinks = scores.sinks.float().view(logits.shape[0], 1, -1, 1).expand(*logits.shape[:3], 1)
    return torch.softmax(torch.cat([logits, sinks], dim=-1), dim=-1)[..., :-1].contiguous()


def _causal(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Query `[heads, T, D]`, the last of the tokens of `k` and `v` `[kv_heads, L, D]`."""
    heads, new, dim = query.shape
    kv_heads, cached = k.shape[0], k.shape[1] - new
    own_k, own_v = (t[:, cached:].repeat_interleave(heads // kv_heads, dim=0)[None] for t in (k, v))
    output, log_sum = _flash(query[None], own_k, own_v, is_causal=True, scale=scale)
    if not cached:
        return output[0]
    grouped = query.reshape(1, kv_heads, -1, dim)
    before, log_sum_before = _flash(grouped, k[None, :, :cached], v[None, :, :cached], scale=scale)
    share = torch.sigmoid(log_sum_before.reshape(heads, new, 1) - log_sum.reshape(heads, new, 1))
    return torch.lerp(output[0].float(), before.reshape(heads, new, dim).float(), share.float()).to(query.dtype)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of the CPU's flash kernel, which is not public but has both."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
    )
