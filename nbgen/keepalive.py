"""How a TCP connection ends whose other end is gone without a word: asleep, unplugged, or forgotten by what is between.

Options of sockets, the same for both ends. Without them nobody hears of it for hours.
"""

from __future__ import annotations

import contextlib
import socket

#: Seconds without a byte, after which the system asks for a sign; between two questions; and how many may be in vain.
IDLE, INTERVAL, COUNT = 60, 15, 4

_VALUES = {
    "TCP_KEEPIDLE": IDLE,
    "TCP_KEEPALIVE": IDLE,  # macOS's name for it
    "TCP_KEEPINTVL": INTERVAL,
    "TCP_KEEPCNT": COUNT,
    "TCP_USER_TIMEOUT": 1000 * (IDLE + COUNT * INTERVAL),  # milliseconds, where something was sent: then nobody asks
}
_UNREAD = socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", -1)
_MOST = 2**31 - 1

Option = tuple[int, int, int]


def accepted(options: list[Option]) -> list[Option]:
    """Those that the system takes: one that it refuses would end each connection that it is meant for."""
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
    """Have the system notice when the other end is gone, if it is a connection over TCP.

    To the system one that takes nothing is gone as well, so it waits for at least as long as a reader may take nothing.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it has ended already
        for level, name, value in OPTIONS:
            least = int(min(1000 * reader_seconds, _MOST)) if (level, name) == _UNREAD else 0
            connection.setsockopt(level, name, max(value, least))
