"""Tensors at fixed addresses, which CUDA graphs of decodes read: each batch is written into them from host memory.

On a GPU a kernel reads the host's memory itself, in the order of the stream. Knows no graph and no model.
"""

from collections.abc import Sequence as Rows
from itertools import cycle
from typing import NamedTuple

import torch

from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.upload import upload

#: How many numbers a row has before its block table.
FIELDS = 5
#: Batches that may wait in the host's memory for the GPU.
WAITING = 3
#: Blocks of a table that a kernel moves at once.
AT_ONCE = 256


class HostRows(NamedTuple):
    """A batch in the host's memory, int32 `[most, FIELDS + blocks]`, and the event of a GPU having read it."""

    numbers: torch.Tensor
    read: torch.cuda.Event | None


class GraphInputs:
    """Ids and positions `[most, 1]`, slots, indices and lengths `[most]`, int32 block tables `[most, blocks]`."""

    def __init__(self, most: int, blocks: int, device: torch.device) -> None:
        self.blocks = blocks
        self._numbers = torch.zeros(FIELDS, most, dtype=torch.long, device=device)
        self.ids, self.positions = self._numbers[0, :, None], self._numbers[1, :, None]
        self.slots, self.indices, self.lengths = self._numbers[2:]
        self.tables = torch.zeros(most, blocks, dtype=torch.int32, device=device)
        self._waiting = cycle([_host_rows(most, FIELDS + blocks, device) for _ in range(WAITING)])

    def write(self, rows: Rows[DecodeRow], bucket: int, cache: KVCache, newest: SampledTokens | None = None) -> None:
        """Write the batch, padded to `bucket` rows; negative tokens stand for ones that only `newest` has yet."""
        numbers, read = next(self._waiting)
        if read is None:
            self._copy(pack(rows, numbers[:bucket], cache), newest)
            return
        read.synchronize()
        self.place(pack(rows, numbers[:bucket], cache), newest)
        read.record()

    def _copy(self, given: torch.Tensor, newest: SampledTokens | None) -> None:
        """Write rows without kernels of our own."""
        bucket = len(given)
        given = upload(given, self.tables.device)
        self._numbers[:, :bucket] = given[:, :FIELDS].T
        self.tables[:bucket, : given.shape[1] - FIELDS] = given[:, FIELDS:]
        if newest is not None:
            self.ids[:bucket] = newest.fill(self.ids[:bucket])

    def place(self, given: torch.Tensor, newest: SampledTokens | None) -> None:
        """Write rows that the GPU can read, in one kernel."""
        from nbgen.engine.step_kernels import place_row  # only where there is a GPU

        bucket, width = given.shape
        place_row[(bucket,)](
            given, given if newest is None else newest.ids, self._numbers, self.tables, width, given.stride(0),
            self._numbers.shape[1], self.blocks, FIELDS=FIELDS, BLOCK=AT_ONCE, num_warps=1,
        )  # fmt: skip


def pack(rows: Rows[DecodeRow], room: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Write the rows into `room`, and return the part in use; rows that pad decode one token in the scratch block."""
    size, used = cache.block_size, max((len(row.block_table) for row in rows), default=1)
    packed = room[:, : FIELDS + used]
    numbers = packed.numpy()
    for place, row in enumerate(rows):
        numbers[place, :FIELDS] = (row.token, row.position, row.slot(size), row.index, row.index + 1)
        numbers[place, FIELDS : FIELDS + len(row.block_table)] = row.block_table
        numbers[place, FIELDS + len(row.block_table) :] = 0
    numbers[len(rows) :, : FIELDS + 1] = (0, 0, cache.scratch_block * size, 0, 1, cache.scratch_block)
    return packed


def _host_rows(most: int, width: int, device: torch.device) -> HostRows:
    """Host memory, pinned where the device can read it."""
    reads = device.type == "cuda"
    numbers = torch.zeros(most, width, dtype=torch.int32, pin_memory=reads)
    return HostRows(numbers, torch.cuda.Event() if reads else None)
