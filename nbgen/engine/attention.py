"""Paged attention for transformers' models, through their attention interface.

A model's layers call `paged_attention` with queries, keys and values of new tokens only; the module's current `Step`
says where in the cache these tokens stand and what they may see. The back end here is the reference: torch only, any
device, with sliding windows, chunked attention, soft caps and sinks. Knows no model by name.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from nbgen.engine.attention_window import UNSAID, Window, cached_by, window_of
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.upload import upload

IMPLEMENTATION = "nbgen"


class Span(NamedTuple):
    """A sequence's part of a step: rows `start` to `stop` of the packed tokens are the last of its `length` tokens."""

    start: int
    stop: int
    length: int
    block_table: list[int]
    #: `(first, last + 1)` of each run of tokens (an image's) that see each other both ways, whatever the window.
    blocks: tuple[tuple[int, int], ...] = ()
    #: The slot of its recurrent state in the pool, if the model has states.
    state_slot: int | None = None
    #: Whether `blocks` apply only to layers with a sliding window and do not extend it backwards (Gemma 4).
    windowed: bool = False

    @property
    def begins(self) -> bool:
        """Whether none of the sequence's tokens was computed before this step."""
        return self.length == self.stop - self.start

    def blocks_for(self, window: Window) -> tuple[tuple[int, int], ...]:
        """The `blocks` that apply to layers with this window."""
        return () if self.windowed and window.sliding is None else self.blocks

    def seen(self, window: Window, position: int) -> tuple[int, int]:
        """`(first, last + 1)` of what the token at `position` sees: earlier tokens, and the whole of its own block."""
        first = window.first(position)
        for start, stop in self.blocks_for(window):
            if start <= position < stop:
                return first if self.windowed else min(first, start), stop
        return first, position + 1


class Scores(NamedTuple):
    """How a layer turns `q . k` into probabilities: scale, soft cap (Gemma 2), sinks `[1, heads, 1, 1]` (gpt-oss)."""

    scaling: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None


def padded_tables(spans: list[Span], spare: int = 0) -> list[list[int]]:
    """The spans' block tables, padded with block 0 to the length of the longest plus `spare`."""
    longest = max((len(span.block_table) for span in spans), default=0) + spare
    return [span.block_table + [0] * (longest - len(span.block_table)) for span in spans]


class ReferenceAttention:
    """Gathers each sequence's keys and values and attends with torch's own kernel, or with the formula written out."""

    #: Whether capturing it in CUDA graphs is worth while.
    graphs = False

    def attend(self, query: torch.Tensor, layer: "Layer", step: "Step", window: Window, scores: Scores) -> torch.Tensor:
        """Query `[T, heads, D]` of packed tokens; returns `[T, heads, value_dim]`."""
        decodes = step.decodes
        parts = [self.decode(query[: len(decodes)], layer, step, window, scores)] if decodes else []
        parts += [
            self.prefill(query[span.start : span.stop], layer, span, step, window, scores) for span in step.prefills
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def decode(self, query: torch.Tensor, layer: "Layer", step: "Step", window: Window, scores: Scores) -> torch.Tensor:
        """One query a sequence. Query heads that share a key head become queries of it, so that no key is repeated."""
        batch, heads, dim = query.shape
        kv_heads = layer.keys.shape[1]
        slots = step.once("slots", step.decode_slots)
        mask = step.once(("mask", window), lambda: step.decode_mask(window))
        # Masked slots may hold NaN or infinity from earlier use, and a weight of 0 does not make these 0.
        k, v = (t[slots].to(query.dtype).transpose(1, 2).where(mask.mT, 0) for t in layer)
        if scores.sinks is not None:
            scores = scores._replace(sinks=scores.sinks.view(1, kv_heads, -1, 1))
        output = softmax_attention(query.view(batch, kv_heads, heads // kv_heads, dim), k, v, mask, scores)
        return output.reshape(batch, heads, -1)

    def prefill(
        self, query: torch.Tensor, layer: "Layer", span: Span, step: "Step", window: Window, scores: Scores
    ) -> torch.Tensor:
        """Consecutive queries of one sequence."""
        slots = step.once(("slots", span.start), lambda: step.slots_of(step.tables_of([span]))[0, : span.length])
        mask = step.once(("mask", window, span.start), lambda: step.prefill_mask(span, window))
        k, v = (t[slots].to(query.dtype).transpose(0, 1)[None] for t in layer)
        return softmax_attention(query.transpose(0, 1)[None], k, v, mask, scores)[0].transpose(0, 1)


class Layer(NamedTuple):
    """A layer's whole cache: keys `[slots, kv_heads, D]` and values `[slots, kv_heads, value_dim]`.

    Both are of one type, which may be another than that of queries.
    """

    keys: torch.Tensor
    values: torch.Tensor


@dataclass
class Step:
    """What one forward computes, the same for all layers: decodes first, one row each, then prefills.

    `slots` `[T]` are the cache slots to which the packed tokens' keys and values are written.
    """

    cache: KVCache
    attention: ReferenceAttention
    slots: torch.Tensor
    decodes: list[Span]
    prefills: list[Span]
    #: Whether the step's tensors are reused: later steps write other batches into them (CUDA graphs).
    static: bool = False
    #: The results that `once` keeps, by key.
    made: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: Any, make: Any) -> Any:
        """The result of `make`, computed at the first call with `key` in this step."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def of_last(self, rows: Sequence[int]) -> "Step | None":
        """A step of these `rows` alone; None unless they ascend, are not all, and each is the last of its span."""
        spans = {span.stop - 1: span for span in [*self.decodes, *self.prefills]}
        if len(rows) == len(self.slots) or list(rows) != sorted(rows) or not all(row in spans for row in rows):
            return None
        kept = [spans[row]._replace(start=i, stop=i + 1) for i, row in enumerate(rows)]
        decodes = sum(row < len(self.decodes) for row in rows)
        slots = self.slots[torch.tensor(rows, dtype=torch.long)]
        return Step(self.cache, self.attention, slots, kept[:decodes], kept[decodes:])

    def tables_of(self, spans: list[Span]) -> torch.Tensor:
        """The spans' block tables `[spans, longest]`, int32."""
        tables = padded_tables(spans)
        return upload(tables, self.slots.device, torch.int32).view(len(spans), len(tables[0]) if tables else 0)

    def decode_tables(self) -> torch.Tensor:
        return self.tables_of(self.decodes)

    def decode_lengths(self) -> torch.Tensor:
        """`[B]`"""
        return upload([span.length for span in self.decodes], self.slots.device)

    def slots_of(self, tables: torch.Tensor) -> torch.Tensor:
        """Slots of all tokens of block tables `[spans, blocks]`: `[spans, blocks * block_size]`."""
        size = self.cache.block_size
        first = tables.long()[:, :, None] * size
        return (first + torch.arange(size, device=tables.device)).flatten(1)

    def positions(self) -> torch.Tensor:
        """`[T]`: each packed token's position in its sequence."""
        spans = [*self.decodes, *self.prefills]
        ranges = [torch.arange(s.length - (s.stop - s.start), s.length, device=self.slots.device) for s in spans]
        return torch.cat(ranges)

    def decode_slots(self) -> torch.Tensor:
        return self.slots_of(self.once("tables", self.decode_tables))

    def decode_mask(self, window: Window) -> torch.Tensor:
        """`[B, 1, 1, L]`"""
        slots = self.once("slots", self.decode_slots)
        last = self.once("lengths", self.decode_lengths)[:, None] - 1
        return window.mask(last, torch.arange(slots.shape[1], device=slots.device)[None])[:, None, None]

    def prefill_mask(self, span: Span, window: Window) -> torch.Tensor | None:
        """`[T, length]`, or None if it is the plain causal triangle."""
        new, blocks = span.stop - span.start, span.blocks_for(window)
        if new == span.length and window == Window() and not blocks:
            return None
        positions = torch.arange(span.length, device=self.slots.device)
        if not blocks:
            return window.mask(positions[-new:, None], positions[None])
        rows = [span.seen(window, position) for position in range(span.length - new, span.length)]
        seen = upload(rows, self.slots.device, torch.long)
        return (positions >= seen[:, :1]) & (positions < seen[:, 1:])


_step: Step | None = None


@contextmanager
def current(step: Step) -> Iterator[None]:
    """Make `step` the one that layers see. It is global: only one thread of a process may run a model at a time."""
    global _step
    _step = step
    try:
        yield
    finally:
        _step = None


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = UNSAID,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. Query `[B, heads, T, D]`; the result is `[B, T, heads, value_dim]`.

    Raises NotImplementedError for what needs transformers' own path: a learned position bias, a mask that the model
    makes itself, a window that only the model's masks know.
    """
    if position_bias is not None or attention_mask is not None or _step is None:
        raise NotImplementedError("attention with a position bias or the model's own mask, or outside a step")
    layer = _layer(module, key, value, _step)
    sinks = None if s_aux is None else s_aux.view(1, -1, 1, 1)
    scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
    packed = _packed(query)
    if getattr(module, "attn_temperature_tuning", False) and not module.use_rope:
        packed = packed * _tuning(module, query.shape[2], _step).to(packed.dtype)
    output = _step.attention.attend(packed, layer, _step, window_of(module, sliding_window), scores)
    return output.view(query.shape[0], query.shape[2], *output.shape[1:]), None


AttentionInterface.register(IMPLEMENTATION, paged_attention)


def _layer(module: Any, key: torch.Tensor, value: torch.Tensor, step: Step) -> Layer:
    """The layer's cache after writing its new tokens, or the cache of an earlier layer that this one shares."""
    number = cached_by(module)
    found = None if number == module.layer_idx else step.cache.layer(number)
    return Layer(*(found or step.cache.write(number, step.slots, _packed(key), _packed(value))))


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """`[B, heads, T, D]` as `[B * T, heads, D]`."""
    return tensor.transpose(1, 2).flatten(0, 1)


def _tuning(module: Any, length: int, step: "Step") -> torch.Tensor:
    """`[T, 1, 1]`: corrects the layer's scaling of queries, which counts positions from 0 in every step (Llama 4)."""
    positions = step.once("positions", step.positions)
    counted = torch.arange(length, device=positions.device).repeat(len(positions) // length)
    scales = [
        torch.log1p(((p + 1.0) / module.floor_scale).floor()) * module.attn_scale + 1.0 for p in (positions, counted)
    ]
    return (scales[0] / scales[1])[:, None, None]


def softmax_attention(
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
    """The formula written out, for soft caps and sinks, which the fused kernel lacks."""
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
