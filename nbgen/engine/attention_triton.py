"""Attention on an NVIDIA GPU: Triton kernels that read the cache's blocks in place, in any order.

One launch serves all decodes of a step and one all prefills, with windows, chunks, soft caps and sinks. The reference
serves what the kernels do not (other types, very wide heads). Needs triton: import it only where there is a GPU.
"""

from typing import NamedTuple

import torch
import triton

from nbgen.engine.attention import Layer, ReferenceAttention, Scores, Span, Step
from nbgen.engine.attention_kernels import attend_tiles, decode_tiles, merge_splits
from nbgen.engine.attention_window import Window
from nbgen.engine.kernel_overlap import overlap
from nbgen.engine.upload import upload

WIDEST = 256
MOST_GROUPED = 64
MOST_SPLITS = 32
#: Programs wanted for each multiprocessor, so that all have work while some wait for memory.
PROGRAMS = 2
SERVED = (torch.float32, torch.bfloat16, torch.float16)


class Tiling(NamedTuple):
    """A launch's constants: query rows and keys of one matrix product, warps of a program, pipelined loads (stages)."""

    rows: int
    keys: int
    warps: int
    stages: int


class TritonAttention(ReferenceAttention):
    """Splits decodes so that `processors` multiprocessors have work, however few sequences there are."""

    graphs = True

    def __init__(self, processors: int) -> None:
        self._processors = processors

    @classmethod
    def of(cls, device: torch.device) -> "TritonAttention":
        """For this GPU, after a trial launch. Raises whatever Triton raises if it cannot compile or launch there."""
        attention = cls(torch.cuda.get_device_properties(device).multi_processor_count)
        probe = torch.zeros(1, 1, 16, device=device)
        tables, tiles = (torch.zeros(1, n, dtype=torch.int32, device=device) for n in (1, 4))
        tiles[0, 1] = 1
        attention._launch(probe, Layer(probe, probe), tiles, tables, 1, Window(), Scores(1.0), probe, decodes=True)
        return attention

    def attend(self, query: torch.Tensor, layer: Layer, step: Step, window: Window, scores: Scores) -> torch.Tensor:
        if not serves(query, layer):
            if step.static:
                raise NotImplementedError("a captured step with heads that the kernels do not serve")
            return super().attend(query, layer, step, window, scores)
        query = query if query.stride(-1) == 1 else query.contiguous()
        output = query.new_empty(*query.shape[:2], layer.values.shape[-1])
        size = step.cache.block_size
        if step.decodes:
            tables, tiles = step.once("tables", step.decode_tables), step.once("tiles", lambda: tiles_of_decodes(step))
            self._launch(query, layer, tiles, tables, size, window, scores, output, decodes=True)
        if step.prefills:
            rows = tiling(query, layer, decodes=False).rows // _group(query, layer)
            tables = step.once("prefill_tables", lambda: step.tables_of(step.prefills))
            tiles = step.once(("tiles", rows), lambda: tiles_of_prefills(step.prefills, rows, query.device))
            self._launch(query, layer, tiles, tables, size, window, scores, output, decodes=False)
        for span in step.prefills:
            if span.blocks_for(window):  # the kernels do not support these
                own = slice(span.start, span.stop)
                output[own] = self.prefill(query[own], layer, span, step, window, scores)
        return output

    def splits(self, programs: int) -> int:
        """How many parts to split a decode's keys into, a power of two; `programs` is their number without splits."""
        wanted = triton.next_power_of_2(-(-PROGRAMS * self._processors // programs))
        return min(MOST_SPLITS, wanted)

    def _launch(
        self,
        query: torch.Tensor,
        layer: Layer,
        tiles: torch.Tensor,
        tables: torch.Tensor,
        block_size: int,
        window: Window,
        scores: Scores,
        output: torch.Tensor,
        *,
        decodes: bool,
    ) -> None:
        """Attend `tiles` `[tiles, 4]` of `query` `[T, heads, D]` into `output` `[T, heads, value_dim]`."""
        (heads, dim), kv_heads, value_dim = query.shape[1:], layer.keys.shape[1], layer.values.shape[-1]
        splits = self.splits(len(tiles) * kv_heads) if decodes else 1
        part, sums = output, output
        if splits > 1:
            part = query.new_empty(len(tiles), heads, splits, value_dim, dtype=torch.float32)
            sums = query.new_empty(len(tiles), heads, splits, dtype=torch.float32)
        sinks = query if scores.sinks is None else scores.sinks.reshape(-1)
        shape = tiling(query, layer, decodes=decodes)
        attend_tiles[len(tiles), kv_heads, splits](
            part, sums, query, *layer, sinks, tiles, tables,
            *query.stride()[:2], *layer.keys.stride()[:2], *layer.values.stride()[:2], tables.stride(0), heads,
            scores.scaling, scores.softcap or 0.0, window.sliding or 0, window.chunk or 0, splits,
            GROUP=heads // kv_heads, SPLIT=splits > 1, HAS_SOFTCAP=scores.softcap is not None,
            HAS_SINKS=scores.sinks is not None, HAS_WINDOW=window != Window(), PAGE=block_size,
            DIM=dim, VALUE_DIM=value_dim, BLOCK_M=shape.rows, BLOCK_N=shape.keys,
            BLOCK_D=width(dim), BLOCK_V=width(value_dim), PRECISION=precision(query.dtype),
            num_warps=shape.warps, num_stages=shape.stages, enable_fp_fusion=True, **overlap(query.device),
        )  # fmt: skip
        if splits > 1:
            merge_splits[len(tiles), heads](
                output, part, sums, sinks, heads, splits,
                HAS_SINKS=scores.sinks is not None, VALUE_DIM=value_dim,
                BLOCK_S=MOST_SPLITS, BLOCK_V=width(value_dim), enable_fp_fusion=True, **overlap(query.device),
            )  # fmt: skip


def serves(query: torch.Tensor, layer: Layer) -> bool:
    """Whether the kernels support these types and heads; if not, the reference serves them."""
    dims = (query.shape[-1], layer.values.shape[-1])
    same = query.dtype == layer.keys.dtype == layer.values.dtype
    return same and query.dtype in SERVED and max(dims) <= WIDEST and _group(query, layer) <= MOST_GROUPED


def tiling(query: torch.Tensor, layer: Layer, *, decodes: bool) -> Tiling:
    """A program's tiles fit into the shared memory and registers of sm_80; sm_90 has more shared memory."""
    head = width(max(query.shape[-1], layer.values.shape[-1]))
    least = max(16, triton.next_power_of_2(_group(query, layer)))
    if query.dtype == torch.float32:
        return Tiling(least, 16, min(16, max(4, least * head // 1024)), 1)
    wide = head > 128
    if decodes:
        return Tiling(least, 32 if wide else 64, 8 if least * head > 8192 else 4, 3)
    return Tiling(max(64, least), 32 if wide else 64, 8 if wide else 4, 2)


def width(dim: int) -> int:
    """The width of a matrix that holds a head of `dim` numbers."""
    return max(16, triton.next_power_of_2(dim))


def precision(dtype: torch.dtype) -> str:
    """float32 is multiplied in full precision, not as TF32: a client that chose it wants its digits."""
    return "ieee" if dtype == torch.float32 else "tf32"


def tiles_of_decodes(step: Step) -> torch.Tensor:
    """A tile of one query for each sequence: int32 `[B, 4]`."""
    lengths = step.once("lengths", step.decode_lengths)
    tiles = torch.empty(len(lengths), 4, dtype=torch.int32, device=lengths.device)
    decode_tiles[(len(lengths),)](tiles, lengths, num_warps=1)
    return tiles


def tiles_of_prefills(prefills: list[Span], queries: int, device: torch.device) -> torch.Tensor:
    """The prefills cut into tiles of up to `queries`: int32 `[tiles, 4]`."""
    tiles = [
        (row, min(queries, span.stop - row), span.length - (span.stop - row), index)
        for index, span in enumerate(prefills)
        for row in range(span.start, span.stop, queries)
    ]
    return upload(tiles, device, torch.int32)


def _group(query: torch.Tensor, layer: Layer) -> int:
    """Query heads for each key head."""
    return query.shape[1] // layer.keys.shape[1]
