"""Reads the header of a safetensors file: its tensors, and thereby whether the file is complete.

A file that is cut off, or is no safetensors, is thus refused before the present model is given up. Reads no tensor's
data: that is checked by loading.
"""

import math
import os
from io import BufferedReader
from pathlib import Path

import msgspec

#: Size of the header's length, which comes first.
LENGTH_BYTES = 8
#: Size of the longest header that safetensors reads.
MAX_HEAD = 100_000_000
#: The header's entry for metadata, which is no tensor.
REMARKS = "__metadata__"


class Entry(msgspec.Struct):
    """A tensor's entry in the header."""

    data_offsets: tuple[int, int]
    shape: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


_entry_decoder = msgspec.json.Decoder(Entry)


def is_whole(path: Path) -> bool:
    """Whether the header can be read, and the file ends where its last tensor does."""
    with path.open("rb") as file:
        if (found := _head(file)) is None:
            return False
        end = max((entry.data_offsets[1] for entry in found.values()), default=0)
        return file.tell() + end == _size(file)


def tensors(path: Path) -> dict[str, Entry]:
    """The header's entries by name; empty if it cannot be read."""
    with path.open("rb") as file:
        return _head(file) or {}


def _head(file: BufferedReader) -> dict[str, Entry] | None:
    """The header without metadata; None if it cannot be read."""
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if length > min(MAX_HEAD, _size(file) - LENGTH_BYTES):
        return None
    try:
        found = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        return {name: _entry_decoder.decode(entry) for name, entry in found.items() if name != REMARKS}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _size(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size
