"""What the head of a safetensors file says: its tensors, and so whether it is whole.

What is cut off, or something else, costs no model its place. Reads none of the tensors, and leaves to loading what is
in them.
"""

import math
import os
from io import BufferedReader
from pathlib import Path

import msgspec

#: Of the head's length, which comes first.
LENGTH_BYTES = 8
#: Of the longest head that safetensors reads.
MAX_HEAD = 100_000_000
#: The file's own remarks, which are no tensor.
REMARKS = "__metadata__"


class Entry(msgspec.Struct):
    """What the head says of a tensor."""

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
    """Whether the head can be read, and the file ends where the last of its tensors does."""
    with path.open("rb") as file:
        if (found := _head(file)) is None:
            return False
        end = max((entry.data_offsets[1] for entry in found.values()), default=0)
        return file.tell() + end == _size(file)


def tensors(path: Path) -> dict[str, Entry]:
    """By their names; none where the head cannot be read."""
    with path.open("rb") as file:
        return _head(file) or {}


def _head(file: BufferedReader) -> dict[str, Entry] | None:
    """All of it but the remarks; None where it cannot be read."""
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
