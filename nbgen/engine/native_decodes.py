"""Decodes that go on: a step of the same sequences as one before, in C++. CPU only.

Preparing a whole step takes half as long as computing a small model's layers. So what was prepared is kept here, and
moved on by some tokens in place. Knows nothing of layers.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from nbgen.engine.attention import ReferenceAttention, Span, Step
from nbgen.engine.attention_plan import CHUNK, Plan
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.native_step import PreparedStep
from nbgen.engine.rotary_table import Rotary


def step_of(rows: Sequence[DecodeRow], cache: KVCache, attention: ReferenceAttention) -> Step:
    """A step of these decodes that can be moved on in place."""
    slots = torch.tensor([row.slot(cache.block_size) for row in rows])
    spans = [Span(i, i + 1, row.index + 1, row.block_table, (), row.state_slot) for i, row in enumerate(rows)]
    return Step(cache, attention, slots, spans, [], static=True)


class NativeDecodes:
    """The rows of a step that is `prepared`, with their `ids` `[B]`, `rotary`, and plans of their attention.

    No layer has a window.
    """

    def __init__(
        self,
        rows: Sequence[DecodeRow],
        prepared: PreparedStep,
        ids: torch.Tensor,
        rotary: Rotary,
        plans: Iterable[Plan],
    ) -> None:
        self.prepared = prepared
        self._rows = rows
        self._blocks = [list(row.block_table) for row in rows]
        self._longest = len(rotary.cosines)
        self._ids, self._positions, self._slots = ids.numpy(), rotary.positions.numpy(), prepared.step.slots.numpy()
        self._plans = [(np.frombuffer(plan.numbers, np.int64), plan.growth(), plan.tables()) for plan in plans]
        self._columns = min((tables.shape[1] for _, _, tables in self._plans), default=self._longest)

    def goes_on(self, rows: Sequence[DecodeRow]) -> bool:
        """Move the step on to `rows`, if these are the same sequences further on in the same chunks of attention."""
        if len(rows) != len(self._rows) or not all(map(self._follows, rows, self._rows, self._blocks)):
            return False
        for i, row in enumerate(rows):
            if len(row.block_table) > len(self._blocks[i]):
                self._extend(i, row.block_table)
        size = self.prepared.step.cache.block_size
        further = np.array([row.index - before.index for row, before in zip(rows, self._rows, strict=True)])
        self._rows = rows
        self._ids[:] = [row.token for row in rows]
        self._slots[:] = [row.slot(size) for row in rows]
        self._positions += further
        for numbers, (places, owners), _ in self._plans:
            numbers[places] += further[owners]
        return True

    def _follows(self, row: DecodeRow, before: DecodeRow, blocks: list[int]) -> bool:
        fits = row.position < self._longest and len(row.block_table) <= self._columns
        alike = (row.shift, row.state_slot) == (before.shift, before.state_slot)
        begins_alike = row.block_table[: len(blocks)] == blocks
        return fits and alike and begins_alike and row.index // CHUNK == before.index // CHUNK

    def _extend(self, row: int, blocks: list[int]) -> None:
        self._blocks[row] = list(blocks)
        for _, _, tables in self._plans:
            tables[row, : len(blocks)] = blocks
