"""Decode steps as CUDA graphs: one for each bucket of batch sizes, captured when first needed, then replayed.

A graph reads its inputs from tensors that never move (`graph_inputs`), padded to its bucket. Without a GPU the same
padded steps run uncaptured. Knows nothing of sampling: it returns scores, which are valid until the next step.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch

from nbgen.engine import memory
from nbgen.engine.attention import ReferenceAttention, Span, Step
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.forward import Decoded
from nbgen.engine.graph_inputs import GraphInputs
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.sampled_tokens import NO_TOKEN, SampledTokens

#: Batch sizes with a graph of their own; larger ones are rounded up to multiples of the last.
BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)

#: Scores `[B, vocab]` from a step, its ids and positions `[B, 1]`.
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
        self._inputs = GraphInputs(self._most, blocks, device)
        self._graphs: dict[int, tuple[Callable[[], object], Decoded]] = {}
        #: Buckets whose graph did not fit into memory.
        self._short: set[int] = set()
        self._pool: Any = torch.cuda.graph_pool_handle() if self._captures else None
        self.works = True

    @torch.inference_mode()
    def decode(self, rows: Rows[DecodeRow], newest: SampledTokens | None = None) -> Decoded | None:
        """Scores of the next tokens; None if the model cannot be captured or the batch is too large.

        A negative token is not known to the host yet: `newest` has it on the device (`Sequence.next_ids`).
        """
        bucket = bucket_of(len(rows))
        if not self.works or bucket > self._most or max(len(r.block_table) for r in rows) > self._inputs.blocks:
            return None
        self._inputs.write(rows, bucket, self._cache, newest)
        if bucket not in self._graphs and not self._add(bucket):
            return None
        replay, decoded = self._graphs[bucket]
        replay()
        return decoded.of(slice(len(rows)))

    @torch.inference_mode()
    def prepare(self) -> None:
        """Make the graph for one sequence, so that the first request need not wait. There must be no other yet."""
        self._inputs.write([], 1, self._cache)
        self._add(1)

    def _add(self, bucket: int) -> bool:
        """Make the bucket's graph; False if the model cannot be captured, or there is no memory for the graph."""
        if bucket in self._short:
            return False
        stream = torch.cuda.current_stream() if self._captures else None
        try:
            self._graphs[bucket] = self._captured(bucket) if self._captures else self._uncaptured(bucket)
        except (RuntimeError, NotImplementedError) as error:
            if memory.ran_out(error):
                log.warning("No memory for a CUDA graph of %d rows (%s); such decodes run without", bucket, error)
                self._short.add(bucket)
            else:
                log.warning("This model's decodes cannot be captured in CUDA graphs (%s); they run without", error)
                self.works = False
            if stream is not None:
                self._abandon(stream)
        return bucket in self._graphs

    def _abandon(self, stream: torch.cuda.Stream) -> None:
        """Clean up after a failed capture, which leaves its stream current and the allocator bound to its pool."""
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # if the capture had not begun, or has ended
            torch._C._cuda_endAllocateToPool(stream.device_index, self._pool)

    def _captured(self, bucket: int) -> tuple[Callable[[], object], Decoded]:
        from nbgen.engine.step_kernels import most_likely  # only where there is a GPU

        stream = _capture_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up in their first call, which must not be captured
            most_likely(self._forward(bucket), NO_TOKEN)
            with _refusing_to_wait():
                self._forward(bucket)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            scores = self._forward(bucket)
            decoded = Decoded(scores, most_likely(scores, NO_TOKEN))
        return graph.replay, decoded

    def _uncaptured(self, bucket: int) -> tuple[Callable[[], object], Decoded]:
        scores = self._forward(bucket)
        best = _most_likely(scores)

        def replay() -> None:
            scores.copy_(self._forward(bucket))
            best.copy_(_most_likely(scores))

        return replay, Decoded(scores, best)

    def _forward(self, bucket: int) -> torch.Tensor:
        """`[bucket, vocab]`"""
        inputs = self._inputs
        spans = [Span(row, row + 1, 1, []) for row in range(bucket)]
        made = {"tables": inputs.tables, "lengths": inputs.lengths, "positions": inputs.indices}
        made = {key: tensor[:bucket] for key, tensor in made.items()}
        step = Step(self._cache, self._attention, inputs.slots[:bucket], spans, [], static=True, made=made)
        return self._decode(step, inputs.ids[:bucket], inputs.positions[:bucket])


@lru_cache
def _capture_stream(_device: int) -> torch.cuda.Stream:
    """The current device's one stream for all captures: libraries keep memory for each stream that they have used."""
    return torch.cuda.Stream()


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Raises RuntimeError where the host would wait for the device, which would break a capture: run this first."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _most_likely(scores: torch.Tensor) -> torch.Tensor:
    """The same result as `step_kernels.most_likely`, without kernels."""
    numbers = scores.nan_to_num(nan=float("-inf"), neginf=float("-inf"))
    return torch.where(scores.isfinite().any(-1), numbers.argmax(-1), NO_TOKEN)
