"""Splits a step's attention into tasks: chunks of decodes, chunks that several decodes share, tiles of prompts.

Knows which positions each new token sees and where blocks stand, not what heads contain.
"""

import ctypes
from array import array
from ctypes import c_int64, c_void_p
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch

from nbgen.engine.attention import Span, Step, padded_tables
from nbgen.engine.attention_cpu import shared_prefix_groups
from nbgen.engine.attention_window import Window

#: Positions of a chunk, the part of a decode that one thread computes at a time; it begins at a multiple of this.
CHUNK = 128
#: The keys of a prompt's task begin at a multiple of this.
KEYS = 64
#: Spare columns for later blocks in the tables of a static step.
SPARE = 8
#: Queries of a tile, counting all heads that share a key head: enough that packing the keys takes little of its time.
QUERIES = 192


class BatchFields(ctypes.Structure):
    """`Batch` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "tasks", "blocks", "block_size", "threads", "chunk")),
        *((name, c_void_p) for name in ("tables", "firsts", "ends", "chunks", "members", "task")),
    ]


class Task(NamedTuple):
    """Rows `members[offset : offset + count]` over positions `begin` to `end`; `chunk` is -1 if they see no others."""

    sequence: int
    offset: int
    count: int  # type: ignore[assignment]  # in place of a tuple's own
    begin: int
    end: int
    chunk: int


class Plan(NamedTuple):
    """The tasks for all layers with one window; `chunks` counts those of all decodes together."""

    fields: BatchFields
    chunks: int
    #: The memory that `fields` points to.
    numbers: "array[int]"

    @classmethod
    def of(cls, step: Step, window: Window, group: int) -> "Plan":
        """`group` query heads share a key head."""
        planned = _Planned(step, window, max(1, QUERIES // group))
        tables = padded_tables([*step.decodes, *step.prefills], spare=SPARE if step.static else 0)
        counts = [
            -(-span.length // CHUNK) - first // CHUNK for span, first in zip(step.decodes, planned.firsts, strict=False)
        ]
        chunks = [0, *accumulate(counts)]
        blocks, tasks = list(chain(*tables)), list(chain(*planned.tasks))
        lists = (blocks, planned.firsts, planned.ends, chunks, planned.members, tasks)
        numbers = array("q", chain(*lists))
        begin, _ = numbers.buffer_info()
        at = [begin + 8 * start for start in accumulate(map(len, lists[:-1]), initial=0)]
        width = len(tables[0]) if tables else 0
        sizes = (len(step.decodes), len(planned.tasks), width, step.cache.block_size, torch.get_num_threads(), CHUNK)
        return cls(BatchFields(*sizes, *at), chunks[-1], numbers)

    def tables(self) -> np.ndarray:
        """The decodes' block tables `[rows, columns]`, a view of the memory that the C++ reads."""
        rows, columns = self.fields.rows, self.fields.blocks
        return np.frombuffer(self.numbers, np.int64, rows * columns).reshape(rows, columns)

    def growth(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of `numbers` that grow by 1 with each token of a decode, and the rows of those decodes.

        Holds until a decode fills its chunk, for steps without prefills.
        """
        numbers, rows = np.frombuffer(self.numbers, np.int64), self.fields.rows
        owners = np.full_like(numbers, -1)
        first = rows * (self.fields.blocks + 1)
        ends = slice(first, first + rows)
        owners[ends] = np.arange(rows)
        tasks = Task(*self._tasks(numbers).T)
        grow = tasks.end == numbers[ends][tasks.sequence]
        self._tasks(owners)[:, Task._fields.index("end")] = np.where(grow, tasks.sequence, -1)
        places = np.flatnonzero(owners >= 0)
        return places, owners[places]

    def _tasks(self, numbers: np.ndarray) -> np.ndarray:
        """The tasks' part of `numbers` as `[tasks, fields]`."""
        fields = len(Task._fields)
        return numbers[-fields * self.fields.tasks :].reshape(-1, fields)


class _Planned:
    """Collects a plan's tasks, and the positions that each row sees."""

    def __init__(self, step: Step, window: Window, most: int) -> None:
        self.firsts: list[int] = []
        self.ends: list[int] = []
        self.members: list[int] = []
        self.tasks: list[Task] = []
        self._most, self._size = most, step.cache.block_size
        self._decode(step.decodes, window)
        for sequence, span in enumerate(step.prefills, len(step.decodes)):
            self._prefill(sequence, span, window)

    def _decode(self, spans: list[Span], window: Window) -> None:
        self.firsts = [window.first(span.length - 1) for span in spans]
        self.ends = [span.length for span in spans]
        tables = [span.block_table[first // self._size :] for span, first in zip(spans, self.firsts, strict=True)]
        for shared, rows in shared_prefix_groups(tables, self.firsts, self._size):
            first = self.firsts[rows[0]]
            known = (first // self._size + shared) * self._size // CHUNK if shared else 0
            for chunk in range(first // CHUNK, known):
                for begin in range(0, len(rows), self._most):
                    self._add_chunk(rows[begin : begin + self._most], chunk)
            for row in rows:
                for chunk in range(max(known, self.firsts[row] // CHUNK), -(-self.ends[row] // CHUNK)):
                    self._add_chunk([row], chunk)

    def _add_chunk(self, rows: list[int], chunk: int) -> None:
        longest = max(rows, key=self.ends.__getitem__)
        begin, end = chunk * CHUNK, min(chunk * CHUNK + CHUNK, self.ends[longest])
        number = chunk - self.firsts[longest] // CHUNK
        self.tasks.append(Task(longest, len(self.members), len(rows), begin, end, number))
        self.members += rows

    def _prefill(self, sequence: int, span: Span, window: Window) -> None:
        start = span.length - (span.stop - span.start)
        for begin in range(span.start, span.stop, self._most):
            rows = range(begin, min(begin + self._most, span.stop))
            seen = [span.seen(window, start + row - span.start) for row in rows]
            firsts, ends = zip(*seen, strict=True)
            keys = min(firsts) // KEYS * KEYS, max(ends)
            self.tasks.append(Task(sequence, len(self.members), len(rows), *keys, -1))
            self.members += rows
            self.firsts += firsts
            self.ends += ends
