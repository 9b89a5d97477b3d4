"""How long is waited for a reader who is slow: as long as something of the answer still leaves.

Does not know what is sent.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable

from tornado.iostream import IOStream


async def all_taken(written: asyncio.Future[None], taken: Callable[[], int], seconds: float) -> bool:
    """Wait until `written` is done; False where `taken` has not changed for `seconds`."""
    before, now = None, taken()
    while now != before:
        await asyncio.wait([written], timeout=seconds)
        if written.done():
            return True
        before, now = now, taken()
    return False


def taken(stream: IOStream) -> int:
    """A number that changes when the reader takes something.

    The system's own buffer counts: it takes no more until a third of it is free, for which a slow reader needs long.
    """
    return stream._total_write_done_index - _on_the_way(stream)


def _on_the_way(stream: IOStream) -> int:
    """Bytes that the system has and the other end has not; 0 where it does not tell."""
    if stream.closed():
        return 0
    try:
        found: int = struct.unpack("i", fcntl.ioctl(stream.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:  # not every system tells this of a socket
        return 0
    return found
