"""Decode steps as CUDA graphs: one a bucket of batch sizes, captured when first needed, replayed from then on.

A graph reads what it computes from tensors that never move; a batch is written into them and padded to its bucket with
rows that decode one token in a scratch block. Where there is no GPU the same padded steps run without being captured.
Knows nothing of sampling: scores come out, valid until the next step.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Rows

import numpy as np
import torch

from nbgen.engine.attention import ReferenceAttention, Span, Step
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.upload import upload

#: Batch sizes that have a graph of their own; larger ones go on in steps of the last.
BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)

#: `[B, vocab]` of a step's ids and positions `[B, 1]`.
Decode = Callable[[Step, torch.Tensor, torch.Tensor], torch.Tensor]

log = logging.getLogger(__name__)


def bucket_of(size: int) -> int:
    """The rows that a batch of `size` is padded to."""
    return next((b for b in BUCKETS if b >= size), -(-size // BUCKETS[-1]) * BUCKETS[-1])


class DecodeGraphs:
    """Runs decode batches of up to `most` sequences of up to `blocks` blocks over static tensors."""

    def __init__(
        self, decode: Decode, cache: KVCache, attention: ReferenceAttention, *, most: int, blocks: int
    ) -> None:
        self._decode = decode
        self._cache = cache
        self._attention = attention
        self._most = bucket_of(most)
        device = cache.device
        self._captures = device.type == "cuda"
        self._inputs = Inputs(self._most, blocks, device)
        self._graphs: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None
        self.works = True

    @torch.inference_mode()
    def scores(self, rows: Rows[DecodeRow], newest: SampledTokens | None = None) -> torch.Tensor | None:
        """`[rows, vocab]` of the next token; None where the model cannot be captured or the batch is too large.

        Negative tokens are awaited ones, which `newest` has (`Sequence.next_ids`).
        """
        bucket = bucket_of(len(rows))
        if not self.works or bucket > self._most or max(len(r.block_table) for r in rows) > self._inputs.blocks:
            return None
        self._inputs.write(rows, bucket, self._cache)
        if newest is not None:
            self._inputs.ids.copy_(newest.fill(self._inputs.ids))
        if bucket not in self._graphs and not self._add(bucket):
            return None
        replay, scores = self._graphs[bucket]
        replay()
        return scores[: len(rows)]

    def _add(self, bucket: int) -> bool:
        """Make the bucket's graph; False where the model does what no graph can hold."""
        try:
            self._graphs[bucket] = self._captured(bucket) if self._captures else self._uncaptured(bucket)
        except (RuntimeError, NotImplementedError) as error:
            log.warning("This model's decodes cannot be captured in CUDA graphs (%s); they run without", error)
            self.works = False
        return self.works

    def _captured(self, bucket: int) -> tuple[Callable[[], None], torch.Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up in their first call, which must not be captured
            self._forward(bucket)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            scores = self._forward(bucket)
        return graph.replay, scores

    def _uncaptured(self, bucket: int) -> tuple[Callable[[], None], torch.Tensor]:
        scores = self._forward(bucket)
        return lambda: scores.copy_(self._forward(bucket)), scores

    def _forward(self, bucket: int) -> torch.Tensor:
        """`[bucket, vocab]`"""
        inputs = self._inputs
        spans = [Span(row, row + 1, 1, []) for row in range(bucket)]
        indices = inputs.indices[:bucket]
        made = {"tables": inputs.tables[:bucket], "lengths": indices + 1, ("positions",): indices}
        step = Step(self._cache, self._attention, inputs.slots[:bucket], spans, [], static=True, _made=made)
        return self._decode(step, inputs.ids[:bucket], inputs.positions[:bucket])


class Inputs:
    """Static tensors: ids and positions `[most, 1]`, slots and indices `[most]`, int32 block tables `[most, blocks]`.

    They are filled from the host in one transfer each, without waiting for it.
    """

    def __init__(self, most: int, blocks: int, device: torch.device) -> None:
        self.blocks = blocks
        self._device = torch.zeros(4, most, dtype=torch.long, device=device)
        self.ids, self.positions = self._device[0, :, None], self._device[1, :, None]
        self.slots, self.indices = self._device[2], self._device[3]
        self.tables = torch.zeros(most, blocks, dtype=torch.int32, device=device)

    def write(self, rows: Rows[DecodeRow], bucket: int, cache: KVCache) -> None:
        """Put the batch in, padded to `bucket` rows."""
        size, scratch = cache.block_size, cache.scratch_block
        pads = [(0, 0, scratch * size, 0)] * (bucket - len(rows))
        values = [(row.token, row.position, row.slot(size), row.index) for row in rows]
        used = max(len(r.block_table) for r in rows)
        tables = np.zeros((bucket, used), dtype=np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(row.block_table)] = row.block_table
        tables[len(rows) :, 0] = scratch
        self._device[:, :bucket] = upload(list(zip(*values, *pads, strict=True)), self.tables.device)
        self.tables[:bucket, :used] = upload(tables, self.tables.device)
