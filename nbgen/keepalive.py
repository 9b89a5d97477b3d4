"""Ends TCP connections whose other end has vanished silently: asleep, unplugged, or dropped by a router in between.

Sets socket options, the same at both ends. Without them a lost peer goes unnoticed for hours.
"""

from __future__ import annotations

import contextlib
import socket

#: Seconds without a byte before the first keep-alive probe, seconds between probes, and how many may go unanswered.
IDLE, INTERVAL, COUNT = 60, 15, 4

_VALUES = {
    "TCP_KEEPIDLE": IDLE,
    "TCP_KEEPALIVE": IDLE,  # macOS's name for it
    "TCP_KEEPINTVL": INTERVAL,
    "TCP_KEEPCNT": COUNT,
    "TCP_USER_TIMEOUT": 1000 * (IDLE + COUNT * INTERVAL),  # milliseconds; for unacknowledged data, without probes
}
_UNREAD = socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", -1)
_MOST = 2**31 - 1

Option = tuple[int, int, int]


def accepted(options: list[Option]) -> list[Option]:
    """The options that the system accepts: one that it refuses would break every connection it is set on."""
    found = []
    with contextlib.suppress(OSError), socket.socket() as unconnected:
        for option in options:
            with contextlib.suppress(OSError):
                unconnected.setsockopt(*option)
                found.append(option)
    return found


OPTIONS = accepted(
    [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *(
            (socket.IPPROTO_TCP, getattr(socket, name), value)
            for name, value in _VALUES.items()
            if hasattr(socket, name)
        ),
    ]
)


def keep_alive(connection: socket.socket, reader_seconds: float) -> None:
    """Have the system notice when the other end of a TCP connection is gone.

    The system also drops a peer that reads nothing, so its limit is at least the `reader_seconds` a reader may stall.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # the connection has ended already
        for level, name, value in OPTIONS:
            least = int(min(1000 * reader_seconds, _MOST)) if (level, name) == _UNREAD else 0
            connection.setsockopt(level, name, max(value, least))
