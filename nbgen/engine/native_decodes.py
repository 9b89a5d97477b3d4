"""Decodes that go on: the step after one of the same sequences, in C++. CPU only.

To tell the C++ all of a step takes as long as a fifth of a small model's layers. What was told is kept here, and moved
on by a token where it lies. Knows nothing of layers.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from nbgen.engine.attention import ReferenceAttention, Span, Step
from nbgen.engine.attention_plan import CHUNK, Plan
from nbgen.engine.cuda_graphs import DecodeRow
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.native_step import Told
from nbgen.engine.turns import Turns


class NativeDecodes:
    """One batch of them: `ids` `[B]` and `turns` of a `step`, of which the C++ is then `told`."""

    def __init__(self, rows: Sequence[DecodeRow], turns: Turns, cache: KVCache, attention: ReferenceAttention) -> None:
        self._size = cache.block_size
        self._rows = [row._replace(block_table=list(row.block_table)) for row in rows]
        self._longest = len(turns.cosines)
        self.turns = turns
        self.ids = torch.tensor([row.token for row in rows])
        slots = torch.tensor([self._slot(row) for row in rows])
        spans = [Span(i, i + 1, row.index + 1, row.block_table) for i, row in enumerate(self._rows)]
        self.step = Step(cache, attention, slots, spans, [], static=True)
        self.told: Told | None = None
        self._plans: list[tuple[np.ndarray, np.ndarray]] = []
        self._tables: list[np.ndarray] = []

    def tell(self, told: Told, plans: Iterable[Plan]) -> None:
        """The step was told so, its attention by these plans of layers without a window."""
        self.told = told
        for plan in plans:
            self._plans.append((np.frombuffer(plan.numbers, np.int64), plan.growth()))
            self._tables.append(plan.tables())

    def goes_on(self, rows: Sequence[DecodeRow]) -> bool:
        """Make it the step of these rows, if they are the same ones a token later; not where one begins a chunk."""
        if len(rows) != len(self._rows) or not all(map(self._follows, rows, self._rows)):
            return False
        for i, (row, before) in enumerate(zip(rows, self._rows, strict=True)):
            if len(row.block_table) > len(before.block_table):
                self._extend(i, row.block_table)
        self._rows = [
            row._replace(block_table=before.block_table) for row, before in zip(rows, self._rows, strict=True)
        ]
        self.ids.numpy()[:] = [row.token for row in rows]
        self.step.slots.numpy()[:] = [self._slot(row) for row in rows]
        self.turns.positions.numpy()[:] += 1
        for numbers, growth in self._plans:
            numbers += growth
        return True

    def _follows(self, row: DecodeRow, before: DecodeRow) -> bool:
        known = before.block_table
        fits = row.index + row.shift < self._longest and len(row.block_table) <= self._tables[0].shape[1]
        alike = row.shift == before.shift and row.block_table[: len(known)] == known
        return fits and alike and row.index == before.index + 1 and row.index % CHUNK != 0

    def _extend(self, row: int, blocks: list[int]) -> None:
        self._rows[row].block_table[:] = blocks
        for tables in self._tables:
            tables[row, : len(blocks)] = blocks

    def _slot(self, row: DecodeRow) -> int:
        return row.block_table[row.index // self._size] * self._size + row.index % self._size
