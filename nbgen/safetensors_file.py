"""Whether a safetensors file is whole, told by its head: what is cut off, or something else, costs no model its place.

Reads none of the tensors, and leaves to loading what is in them.
"""

import os
from pathlib import Path

import msgspec

#: Of the head's length, which comes first.
LENGTH_BYTES = 8
#: Of the longest head that safetensors reads.
MAX_HEAD = 100_000_000


class Entry(msgspec.Struct):
    """What the head says of a tensor, and nothing of the file's own remarks."""

    data_offsets: tuple[int, int] = (0, 0)


def is_whole(path: Path) -> bool:
    """Whether the head can be read, and the file ends where the last of its tensors does."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        start = LENGTH_BYTES + length
        if start > size or length > MAX_HEAD:
            return False
        head = file.read(length)
    try:
        entries = msgspec.json.decode(head, type=dict[str, Entry])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return start + max((entry.data_offsets[1] for entry in entries.values()), default=0) == size
