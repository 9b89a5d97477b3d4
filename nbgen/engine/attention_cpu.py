"""Attention on the CPU without gathering: a sequence's blocks that stand side by side are read where they are.

Each such run is one call of torch's flash kernel on a view of the cache; several are merged by their log-sum-exp
(Dao et al. 2022, section 3.1). What the kernel lacks, and sequences in too many pieces, go the reference's way.
"""

import torch

from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Span, Step, Window

MAX_RUNS = 8
#: Measured: at 256 bytes a token gathering is 2.5 times as fast, at 1,024 reading in place is 1.5 times.
NARROW_BYTES = 1024

Run = tuple[int, int]


class CpuAttention(ReferenceAttention):
    """Reads runs of blocks as views.

    Several sequences whose tokens have fewer than `narrow` bytes of keys are gathered all the same: one call for all
    of them costs less than one each.
    """

    def __init__(self, narrow: int = NARROW_BYTES) -> None:
        self._narrow = narrow

    def decode(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        gathers = len(query) > 1 and layer.keys[0].nbytes < self._narrow
        runs = None if gathers else step.once(("runs", window), lambda: _decode_runs(step, window))
        if runs is None or not _kernel_serves(query, layer, scores):
            return super().decode(query, layer, step, window, scores)
        batch, heads, dim = query.shape
        kv_heads = layer.keys.shape[1]
        grouped = query.view(batch, 1, kv_heads, heads // kv_heads, dim)
        output = torch.stack([_attend(q, layer, own, scores) for q, own in zip(grouped, runs, strict=True)])
        return output.view(batch, heads, dim)

    def prefill(
        self, query: torch.Tensor, layer: Layer, span: Span, step: Step, window: Window, scores: Scores
    ) -> torch.Tensor:
        runs = step.once(("runs", span.start), lambda: runs_of(span, 0, step.cache.block_size))
        whole = span.stop - span.start == span.length and window == Window()
        if not whole or len(runs) > 1 or not _kernel_serves(query, layer, scores):
            return super().prefill(query, layer, span, step, window, scores)
        heads, kv_heads = query.shape[1], layer.keys.shape[1]
        k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in _views(layer, runs[0]))
        output, _ = _flash(query.transpose(0, 1)[None], k, v, is_causal=True, scale=scores.scaling)
        return output[0].transpose(0, 1)


def runs_of(span: Span, first: int, block_size: int) -> list[Run]:
    """Slots, as stretches without a gap, of the span's tokens from position `first` on."""
    runs: list[list[int]] = []
    for block in span.block_table[first // block_size : -(-span.length // block_size)]:
        if runs and runs[-1][1] == block:
            runs[-1][1] = block + 1
        else:
            runs.append([block, block + 1])
    slots = [(start * block_size, end * block_size) for start, end in runs]
    slots[0] = (slots[0][0] + first % block_size, slots[0][1])
    slots[-1] = (slots[-1][0], slots[-1][1] - -span.length % block_size)
    return slots


def _decode_runs(step: Step, window: Window) -> list[list[Run]] | None:
    """The runs that each decode sees; None where one has too many."""
    runs = [runs_of(s, window.first(s.length - 1), step.cache.block_size) for s in step.decodes]
    return runs if max(map(len, runs)) <= MAX_RUNS else None


def _kernel_serves(query: torch.Tensor, layer: Layer, scores: Scores) -> bool:
    plain = scores.softcap is None and scores.sinks is None
    return plain and query.shape[-1] == layer.values.shape[-1]


def _attend(query: torch.Tensor, layer: Layer, runs: list[Run], scores: Scores) -> torch.Tensor:
    """One position's query `[1, kv_heads, group, D]` against all its runs; the same shape."""
    parts = [_flash(query, *_views(layer, run), scale=scores.scaling) for run in runs]
    if len(parts) == 1:
        return parts[0][0]
    outputs, log_sums = (torch.stack(tensors) for tensors in zip(*parts, strict=True))
    weights = torch.softmax(log_sums.view(len(parts), *query.shape[:-1]), dim=0)
    return (outputs * weights[..., None]).sum(dim=0).to(query.dtype)


def _views(layer: Layer, run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[1, kv_heads, L, D]` of a run, where they stand."""
    return layer.keys[run[0] : run[1]].transpose(0, 1)[None], layer.values[run[0] : run[1]].transpose(0, 1)[None]


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of the CPU's flash kernel, which is not public but has both."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
    )
