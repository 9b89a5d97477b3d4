"""From a layer's projections through its attention on a GPU: rotate, store keys and values, attend over the cache.

A step of decodes alone takes one kernel for all of that. Knows no weights. Needs triton: import it only with a GPU.
"""

from typing import NamedTuple

import torch
import triton

from nbgen.engine.attention import Layer, Scores, Step
from nbgen.engine.attention_triton import MOST_SPLITS, Tiling, TritonAttention, precision, serves, tiling, width
from nbgen.engine.attention_window import Window
from nbgen.engine.decode_kernel import attend_newest
from nbgen.engine.decoder_kernels import turn_and_store
from nbgen.engine.fused_rows import Norm
from nbgen.engine.kernel_overlap import overlap
from nbgen.engine.rotary_table import Rotary

#: Numbers of a query tile up to which two warps are enough.
SMALL = 2048


class Heads(NamedTuple):
    """The heads of layer `number`; `norms` are those of queries and keys."""

    number: int
    norms: tuple[Norm, Norm] | None
    count: int  # type: ignore[assignment]  # in place of a tuple's own
    kv_count: int
    dim: int
    window: Window
    scores: Scores

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.count // self.kv_count


def attend(projected: torch.Tensor, heads: Heads, step: Step, rotary: Rotary) -> torch.Tensor:
    """`[T, heads, dim]` from `projected` `[T, (heads + 2 * kv_heads) * dim]`, which may change; writes to the cache."""
    queries = projected[:, : heads.count * heads.dim].view(-1, heads.count, heads.dim)
    pair = step.cache.layer(heads.number)
    assert pair is not None, "the step suits"
    cached = Layer(*pair)
    if isinstance(step.attention, TritonAttention) and not step.prefills and serves(queries, cached):
        splits = min(step.attention.splits(len(step.decodes) * heads.kv_count), MOST_SPLITS - 1)
        return _attend_newest(projected, queries, cached, heads, step, rotary, splits)
    _turn_and_store(projected, cached, heads, step, rotary)
    return step.attention.attend(queries, cached, step, heads.window, heads.scores)


def _turn_and_store(projected: torch.Tensor, cached: Layer, heads: Heads, step: Step, rotary: Rotary) -> None:
    """Rotate the queries in `projected` in place, and write the rotated keys and the values to the cache."""
    turn_and_store[len(projected), heads.kv_count](
        projected, *cached, rotary.cosines, rotary.sines, rotary.positions, step.slots, *_norms(heads, rotary),
        *cached.keys.stride()[:2], *cached.values.stride()[:2],
        GROUP=heads.group, KV_HEADS=heads.kv_count, DIM=heads.dim, NORMED=heads.norms is not None,
        BLOCK_H=triton.next_power_of_2(heads.group), BLOCK_D=triton.next_power_of_2(heads.dim // 2), num_warps=1,
        enable_fp_fusion=True, **overlap(projected.device),
    )  # fmt: skip


def _attend_newest(
    projected: torch.Tensor,
    queries: torch.Tensor,
    cached: Layer,
    heads: Heads,
    step: Step,
    rotary: Rotary,
    splits: int,
) -> torch.Tensor:
    rows = len(projected)
    tables, lengths = step.once("tables", step.decode_tables), step.once("lengths", step.decode_lengths)
    output = queries.new_empty(queries.shape)
    parts, sums, arrivals = output, output, output
    if splits > 1:
        parts = output.new_empty(rows, heads.count, splits + 1, heads.dim, dtype=torch.float32)
        sums = output.new_empty(rows, heads.count, splits + 1, dtype=torch.float32)
        arrivals = step.once(
            ("arrivals", heads.kv_count), lambda: output.new_zeros(rows, heads.kv_count, dtype=torch.int32)
        )
    shape = tiling_of(queries, cached, splits)
    attend_newest[rows, heads.kv_count, splits + (splits > 1)](
        output, parts, sums, arrivals, projected, *cached, rotary.cosines, rotary.sines, rotary.positions, step.slots,
        lengths, tables, *_norms(heads, rotary), *cached.keys.stride()[:2], *cached.values.stride()[:2],
        tables.stride(0), heads.scores.scaling, heads.window.sliding or 0, heads.window.chunk or 0, splits,
        GROUP=heads.group, KV_HEADS=heads.kv_count, DIM=heads.dim, NORMED=heads.norms is not None, SPLIT=splits > 1,
        PAGE=step.cache.block_size, BLOCK_M=shape.rows, BLOCK_N=shape.keys, BLOCK_D=width(heads.dim // 2),
        BLOCK_V=width(heads.dim), BLOCK_S=MOST_SPLITS, PRECISION=precision(queries.dtype), num_warps=shape.warps,
        num_stages=shape.stages, enable_fp_fusion=True, **overlap(projected.device),
    )  # fmt: skip
    return output


def tiling_of(queries: torch.Tensor, cached: Layer, splits: int) -> Tiling:
    """The fastest on an H200: with the most splits each program has one tile of keys, so it needs one stage."""
    shape = tiling(queries, cached, decodes=True)
    if queries.dtype == torch.float32 or shape.rows * width(queries.shape[-1]) > SMALL:
        return shape
    return shape._replace(warps=2, stages=1 if splits == MOST_SPLITS - 1 else shape.stages)


def _norms(heads: Heads, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The norms' weights for queries and keys, and their epsilon; without norms, values that no kernel reads."""
    if heads.norms is None:
        return rotary.cosines, rotary.cosines, 0.0
    return heads.norms[0].weight, heads.norms[1].weight, heads.norms[0].epsilon
