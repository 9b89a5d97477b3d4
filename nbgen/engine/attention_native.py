"""Attention on the CPU whose decodes read the cache where it lies, in C++ of our own. Knows no torch operator for it.

What decodes have in common is still read once for all, and prompts are computed, as `attention_cpu` does.
"""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from itertools import accumulate
from typing import NamedTuple

import torch

from nbgen.engine import native
from nbgen.engine.attention import Layer, Scores, Step, Window
from nbgen.engine.attention_cpu import CpuAttention, Group, attend, groups_of

#: Tokens of a chunk: what one thread computes at a time, whatever runs beside it.
CHUNK = 256


class BatchFields(ctypes.Structure):
    """`Batch` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "blocks", "block_size", "threads", "chunk")),
        *((name, c_void_p) for name in ("tables", "firsts", "lengths", "chunks", "owners", "places")),
    ]


class LayerFields(ctypes.Structure):
    """`AttentionLayer` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("heads", "kv_heads", "dim", "value_dim", "slots")),
        *((name, c_float) for name in ("scaling", "softcap")),
        ("sinks", c_void_p),
    ]


class Plan(NamedTuple):
    """How a step's decodes are computed: groups that begin alike in products, the `rows` of all others in C++."""

    groups: list[Group]
    fields: BatchFields | None
    #: Of all rows together.
    chunks: int
    #: What `fields` points to.
    tensors: tuple[torch.Tensor, ...]


class NativeAttention(CpuAttention):
    """Expects a head-major cache. Raises OSError where the C++ cannot be compiled."""

    def __init__(self) -> None:
        super().__init__()
        if native.library() is None:
            raise OSError("native.cpp is not compiled")
        self._functions = {dtype: native.function("attend", dtype) for dtype in native.NAMES}

    def decode(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        if query.dtype not in self._functions or {layer.keys.dtype, layer.values.dtype} != {query.dtype}:
            return super().decode(query, layer, step, window, scores)
        plan = self.plan(step, window, layer)
        output = query.new_empty(*query.shape[:2], layer.values.shape[-1])
        for group in plan.groups:
            rows = slice(None) if group.rows is None else group.rows
            output[rows] = attend(query[rows], layer, group, step.cache.block_size, scores)
        if plan.fields is not None:
            self._attend_rows(query.contiguous(), layer, plan, scores, output)
        return output

    def plan(self, step: Step, window: Window, layer: Layer) -> Plan:
        """How the step's decodes are computed in layers like this one."""
        most = self.most(layer)
        return step.once(("native", window, most), lambda: _plan(step, window, most))

    def _attend_rows(self, query: torch.Tensor, layer: Layer, plan: Plan, scores: Scores, output: torch.Tensor) -> None:
        """The rows of `plan.fields`, into their places of `output` `[B, heads, value_dim]`."""
        keys, values = layer
        slots, kv_heads, dim = keys.shape
        heads, width = output.shape[1:]
        sinks = None if scores.sinks is None else scores.sinks.float().contiguous()
        shape = (heads, kv_heads, dim, width, slots)
        fields = LayerFields(*shape, scores.scaling, scores.softcap or 0, None if sinks is None else sinks.data_ptr())
        scratch = torch.empty(plan.chunks * heads * (width + 2), dtype=torch.float32)
        tensors = (query, keys, values, output, scratch)
        self._functions[query.dtype](
            ctypes.addressof(plan.fields), ctypes.addressof(fields), *(t.data_ptr() for t in tensors)
        )


def _plan(step: Step, window: Window, most: int) -> Plan:
    groups = groups_of(step, window, most, shared_only=True)
    grouped = {row for group in groups for row in (range(group.size) if group.rows is None else group.rows.tolist())}
    rows = [row for row in range(len(step.decodes)) if row not in grouped]
    if not rows:
        return Plan(groups, None, 0, ())
    spans = [step.decodes[row] for row in rows]
    firsts = [window.first(span.length - 1) for span in spans]
    counts = [-(-(span.length - first) // CHUNK) for span, first in zip(spans, firsts, strict=True)]
    starts = [0, *accumulate(counts)]
    owners = [row for row, count in enumerate(counts) for _ in range(count)]
    lists = (firsts, [span.length for span in spans], starts, owners, rows)
    tensors = (step.tables_of(spans), *map(torch.tensor, lists))
    sizes = (len(rows), tensors[0].shape[1], step.cache.block_size, torch.get_num_threads(), CHUNK)
    return Plan(groups, BatchFields(*sizes, *(t.data_ptr() for t in tensors)), starts[-1], tensors)
