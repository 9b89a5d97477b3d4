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
OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _VALUES.items() if hasattr(socket, name)),
]


def keep_alive(connection: socket.socket) -> None:
    """Have the system notice when the other end is gone, if it is a connection over TCP."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # it has ended already
        for option in OPTIONS:
            connection.setsockopt(*option)
