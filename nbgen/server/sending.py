"""Bytes on their way to a reader: straight to the system where nothing waits, no future, no turn of the event loop; and
how long is waited for a reader who is slow, which is as long as something of the answer still leaves.

Tornado's own write is there for all else: who is slow, gone, or not yet begun with. Does not know what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios
from collections.abc import Callable

from tornado.iostream import IOStream


def framed(chunk: bytes) -> bytes:
    """A chunk of a chunked body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(chunk), chunk)


def send(stream: IOStream, data: bytes) -> int:
    """How many bytes the system took; none where others wait, or where it fails, which the next write then says."""
    if stream.closed() or stream.writing():
        return 0
    with contextlib.suppress(OSError):
        return stream.write_to_fd(memoryview(data))
    return 0


async def all_taken(written: asyncio.Future[None], progress: Callable[[], int], seconds: float) -> bool:
    """Wait until `written` is done; False where `progress` has not changed for `seconds`."""
    before, now = None, progress()
    while now != before:
        await asyncio.wait([written], timeout=seconds)
        if written.done():
            return True
        before, now = now, progress()
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
