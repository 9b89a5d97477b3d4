"""Paged attention for transformers' models, through their attention interface.

A model's layers call `paged_attention` with queries, keys and values of new tokens only; where those stand, and what
they may see, is in the module's current `Step`. This is the reference back end: torch only, any device, with sliding
windows, chunked attention, soft caps and sinks. Knows no model by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from nbgen.engine.kv_cache import KVCache

IMPLEMENTATION = "nbgen"


@dataclass
class Prefill:
    """Rows `start` to `stop` of the packed tokens: the last of a sequence whose tokens stand in `slots` `[kv_len]`."""

    start: int
    stop: int
    slots: torch.Tensor


@dataclass
class Step:
    """What one forward computes, the same for all layers.

    The first `len(decode_lengths)` packed tokens are decodes, one a sequence: `decode_slots` `[B, L]` are the slots
    of their tokens (any slot beyond their `decode_lengths` `[B]`). `slots` `[T]` is where new keys and values go.
    """

    cache: KVCache
    slots: torch.Tensor
    decode_slots: torch.Tensor
    decode_lengths: torch.Tensor
    prefills: list[Prefill]
    masks: dict[Any, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Window:
    """Which keys a query at position `q` may see, besides `k <= q`: the last `sliding`, or its own chunk's."""

    sliding: int | None = None
    chunk: int | None = None

    def mask(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Boolean, true where the key may be seen; positions broadcast against each other."""
        seen = keys <= queries
        if self.sliding is not None:
            seen = seen & (keys > queries - self.sliding)
        if self.chunk is not None:
            seen = seen & (keys // self.chunk == queries // self.chunk)
        return seen


@dataclass(frozen=True)
class Scores:
    """How a layer turns `q . k` into probabilities: scale, soft cap (Gemma 2), sinks `[1, heads, 1, 1]` (gpt-oss)."""

    scaling: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None


_step: Step | None = None


@contextmanager
def current(step: Step) -> Iterator[None]:
    """Make `step` the one that layers see. One thread at a time runs a model in a process."""
    global _step
    _step = step
    try:
        yield
    finally:
        _step = None


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. Query `[B, heads, T, D]`; the result is `[B, T, heads, value_dim]`.

    Raises NotImplementedError for a learned position bias, which needs transformers' own path.
    """
    if position_bias is not None or _step is None:
        raise NotImplementedError("attention with a position bias, or outside a step")
    keys, values = _step.cache.write(module.layer_idx, _step.slots, _packed(key), _packed(value))
    sinks = None if s_aux is None else s_aux.view(1, -1, 1, 1)
    scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
    output = _attend(_packed(query), keys, values, _step, _window(module, sliding_window), scores)
    return output.view(query.shape[0], query.shape[2], *output.shape[1:]), None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """`[B, heads, T, D]` as `[B * T, heads, D]`."""
    return tensor.transpose(1, 2).flatten(0, 1)


def _window(module: torch.nn.Module, sliding: int | None) -> Window:
    config = getattr(module, "config", None)
    types = getattr(config, "layer_types", None)
    chunked = types is not None and types[module.layer_idx] == "chunked_attention"
    return Window(sliding, config.attention_chunk_size if chunked else None)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: Step, window: Window, scores: Scores
) -> torch.Tensor:
    """Query `[T, heads, D]` of packed tokens against the layer's slots; `[T, heads, value_dim]`."""
    parts = []
    decodes = len(step.decode_lengths)
    if decodes:
        parts.append(_decode(query[:decodes], keys, values, step, window, scores))
    for index, prefill in enumerate(step.prefills):
        queries = query[prefill.start : prefill.stop].transpose(0, 1)[None]
        mask = _prefill_mask(step, index, window)
        k, v = (t[prefill.slots].transpose(0, 1)[None] for t in (keys, values))
        parts.append(_softmax_attention(queries, k, v, mask, scores)[0].transpose(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: Step, window: Window, scores: Scores
) -> torch.Tensor:
    """One query a sequence. Heads that share a key head become its queries, so that nothing is repeated."""
    batch, heads, dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.view(batch, kv_heads, heads // kv_heads, dim)
    k, v = (t[step.decode_slots].transpose(1, 2) for t in (keys, values))
    if scores.sinks is not None:
        scores = Scores(scores.scaling, scores.softcap, scores.sinks.view(1, kv_heads, -1, 1))
    output = _softmax_attention(grouped, k, v, _decode_mask(step, window), scores)
    return output.reshape(batch, heads, -1)


def _decode_mask(step: Step, window: Window) -> torch.Tensor:
    """`[B, 1, 1, L]`"""
    if window not in step.masks:
        positions = torch.arange(step.decode_slots.shape[1], device=step.slots.device)
        mask = window.mask(step.decode_lengths[:, None] - 1, positions[None])
        step.masks[window] = mask[:, None, None]
    return step.masks[window]


def _prefill_mask(step: Step, index: int, window: Window) -> torch.Tensor | None:
    """`[T, kv_len]`, or None where it is the plain causal triangle."""
    prefill = step.prefills[index]
    total, new = len(prefill.slots), prefill.stop - prefill.start
    if total == new and window == Window():
        return None
    if (index, window) not in step.masks:
        positions = torch.arange(total, device=step.slots.device)
        step.masks[index, window] = window.mask(positions[-new:, None], positions[None])
    return step.masks[index, window]


def _softmax_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """Query `[B, Hq, T, D]`, key and value `[B, Hk, L, D]`, mask broadcast to `[B, Hq, T, L]`; None is causal."""
    if scores.softcap is not None or scores.sinks is not None:
        return _explicit_attention(query, key, value, mask, scores)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scores.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _explicit_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scores: Scores
) -> torch.Tensor:
    """The formula written out, for what the fused kernel lacks."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeats, dim=1) for t in (key, value))
    logits = (query @ key.transpose(-1, -2)) * scores.scaling
    if scores.softcap is not None:
        logits = torch.tanh(logits / scores.softcap) * scores.softcap
    if mask is None:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
    if scores.sinks is None:
        return torch.softmax(logits, dim=-1, dtype=torch.float32).to(value.dtype) @ value
    sinks = scores.sinks.to(logits.dtype).expand(*logits.shape[:3], 1)
    weights = torch.softmax(torch.cat([logits, sinks], dim=-1), dim=-1, dtype=torch.float32)[..., :-1]
    return weights.to(value.dtype) @ value
