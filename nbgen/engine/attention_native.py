"""Attention on the CPU in C++ of our own, which reads the cache in place. Knows no torch operator for it."""

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from functools import cache

import torch

from nbgen.engine import native
from nbgen.engine.attention import Layer, Scores, Step
from nbgen.engine.attention_cpu import CpuAttention
from nbgen.engine.attention_plan import Plan
from nbgen.engine.attention_window import Window


class LayerFields(ctypes.Structure):
    """`AttentionLayer` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("heads", "kv_heads", "dim", "value_dim", "slots", "halves")),
        *((name, c_float) for name in ("scaling", "softcap")),
        ("sinks", c_void_p),
    ]


class NativeAttention(CpuAttention):
    """Expects a head-major cache. Raises OSError if there is no compiler."""

    def __init__(self) -> None:
        super().__init__()
        native.compiler()
        self._function = cache(_attending)

    def attend(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        function = self._function(query.dtype)
        odd = query.shape[-1] % 2
        if function is None or odd or not reads(layer, query.dtype):
            return super().attend(query, layer, step, window, scores)
        query, (keys, values) = query.contiguous(), layer
        slots, kv_heads, dim = keys.shape
        heads, width = query.shape[1], values.shape[-1]
        plan = self.plan(step, window, heads // kv_heads)
        sinks = None if scores.sinks is None else scores.sinks.float().contiguous()
        shape = (heads, kv_heads, dim, width, slots, keys.dtype != query.dtype)
        fields = LayerFields(*shape, scores.scaling, scores.softcap or 0, None if sinks is None else sinks.data_ptr())
        output = query.new_empty(*query.shape[:2], width)
        scratch = torch.empty(plan.chunks * heads * (width + 2), dtype=torch.float32)
        tensors = (query, keys, values, output, scratch)
        function(ctypes.addressof(plan.fields), ctypes.addressof(fields), *(t.data_ptr() for t in tensors))
        return output

    def plan(self, step: Step, window: Window, group: int) -> Plan:
        """The step's plan for layers with this window, in which `group` query heads share a key head."""
        return step.once(("native", window, group), lambda: Plan.of(step, window, group))


def reads(layer: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether the C++ that computes in `dtype` reads keys and values of the layer's type."""
    kept = {tensor.dtype for tensor in layer}
    return kept == {dtype} or (kept == {torch.bfloat16} and dtype == torch.float32)


def _attending(dtype: torch.dtype) -> Callable[..., None] | None:
    if dtype == torch.bfloat16:
        native.tiles()  # from the first step on, or results would change
    return native.function("attend", dtype)
