"""Bytes straight to the system, where a connection has nothing else waiting: no future, no turn of the event loop.

Tornado's own write is there for all else: a reader who is slow, gone, or not yet begun with.
"""

from __future__ import annotations

import contextlib

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
