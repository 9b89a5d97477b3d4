"""Tornado's HTTP server with limits that its callers cannot pass: of connections, of time, and of descriptors.

Knows no route and nothing of Jupyter.
"""

from __future__ import annotations

import errno
import resource
import socket
import sys
import time
from collections.abc import Iterable
from logging import Logger
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream, SSLIOStream

#: Limit between two requests on a connection, and for a request's headers to arrive.
HEADER_SECONDS = 30.0
#: Limit for a request's body to arrive, unless its handler allows more.
BODY_SECONDS = 30.0
#: Time until the next try after the system had no descriptor left.
PAUSE_SECONDS = 1.0
#: Least time between two equal warnings.
WARNING_SECONDS = 60.0
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: Descriptors of the server itself: its ports, logs, and pipes to engines.
OWN_DESCRIPTORS = 40

_WORDS = b'{"error": {"message": "too many connections", "code": 503}}'
_REFUSAL = b"\r\n".join(
    [
        b"HTTP/1.1 503 Service Unavailable",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(_WORDS),
        b"Retry-After: 5",
        b"Connection: close",
        b"",
        _WORDS,
    ]
)


class LimitedHTTPServer(HTTPServer):
    """Serves at most `max_connections` at a time, fewer where there are few descriptors for them.

    It waits HEADER_SECONDS for a request's headers, and BODY_SECONDS for its body.
    """

    def initialize(self, callback: Any, *, max_connections: int, log: Logger, **options: Any) -> None:  # type: ignore[override]
        super().initialize(callback, idle_connection_timeout=HEADER_SECONDS, body_timeout=BODY_SECONDS, **options)
        self._max_connections = max(1, min(max_connections, descriptors() - OWN_DESCRIPTORS))
        self._warning = RareWarning(log)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        super().add_sockets([PatientSocket(each, self._warning) for each in sockets])

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) < self._max_connections:
            super().handle_stream(stream, address)
            return
        self._warning.give("There are %d connections: more are refused", self._max_connections)
        if not isinstance(stream, SSLIOStream):  # with TLS an answer would need a handshake first
            stream.write(_REFUSAL)
        stream.close()


def descriptors() -> int:
    """How many descriptors the process may have open at a time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


class PatientSocket(socket.socket):
    """A listening socket. If the system has no descriptor for a connection, it pauses accepting for a moment."""

    def __init__(self, listening: socket.socket, warning: RareWarning) -> None:
        super().__init__(fileno=listening.detach())
        self.setblocking(False)
        self._warning = warning

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._warning.give("No connection can be taken now: %s", error.strerror)
            self._look_away()
            raise BlockingIOError from None

    def _look_away(self) -> None:
        loop = IOLoop.current()
        loop.update_handler(self, 0)
        loop.call_later(PAUSE_SECONDS, self._look_again, loop)

    def _look_again(self, loop: IOLoop) -> None:
        if self.fileno() >= 0:
            loop.update_handler(self, IOLoop.READ)


class RareWarning:
    """Logs warnings that callers can cause at any rate, at most one in WARNING_SECONDS."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._again = 0.0

    def give(self, words: str, *arguments: Any) -> None:
        if (now := time.monotonic()) >= self._again:
            self._again = now + WARNING_SECONDS
            self._log.warning(words, *arguments)
