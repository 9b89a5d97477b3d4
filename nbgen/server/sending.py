"""Writes to a client's socket directly if nothing is queued, without a future or a turn of the event loop. Waits for a
slow client for as long as it still takes some bytes.

Tornado's own write serves all other cases: slow or gone clients, and an answer's start. Does not know what is sent.
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
    """Write; return how many bytes the system took. 0 if others wait, or on an error, which the next write raises."""
    if stream.closed() or stream.writing():
        return 0
    with contextlib.suppress(OSError):
        return stream.write_to_fd(memoryview(data))
    return 0


async def all_taken(written: asyncio.Future[None], progress: Callable[[], int], seconds: float) -> bool:
    """Wait until `written` is done; False if `progress` has not changed for `seconds`."""
    before, now = None, progress()
    while now != before:
        await asyncio.wait([written], timeout=seconds)
        if written.done():
            return True
        before, now = now, progress()
    return False


def taken(stream: IOStream) -> int:
    """A number that changes when the client takes some bytes.

    It counts what leaves the system's buffer, which accepts more only once a third is free: a slow client needs long.
    """
    return stream._total_write_done_index - _on_the_way(stream)


def _on_the_way(stream: IOStream) -> int:
    """Bytes in the system's buffer that the other end has not got yet; 0 if the system does not tell."""
    if stream.closed():
        return 0
    try:
        found: int = struct.unpack("i", fcntl.ioctl(stream.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:  # not every system tells this of a socket
        return 0
    return found
