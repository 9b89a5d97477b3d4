"""The engine's end of the socket to the server: frames in, frames out, nothing else.

Reading ends when either end closes. A thread writes what the system does not accept at once, so that a slow reader
never slows the engine's steps.
"""

import contextlib
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator

from nbgen.frames import FRAME_HEADER, FromEngine, ToEngine, Unreadable, encode_frame, frame_length, read_by_engine


class Channel:
    """Both directions of the socket `fd`, which the channel owns from now on."""

    def __init__(self, fd: int, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called on the writing thread when the server is gone."""
        self._on_lost = on_lost
        self._socket = socket.socket(fileno=fd)
        self._readable = select.poll()
        self._readable.register(fd, select.POLLIN)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unsent = 0
        self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)
        self._writer.start()

    def send(self, message: FromEngine) -> None:
        """Send without blocking. If no earlier message waits, the system has the message when this returns."""
        frame = encode_frame(message)
        with self._lock:
            rest = frame if self._unsent else frame[self._sent(frame) :]
            if rest:
                self._unsent += 1
                self._outbox.put(rest)

    def drain(self) -> None:
        """Wait until all that was sent is written. Nothing can be sent any more."""
        self._outbox.put(None)
        self._writer.join(timeout=5)

    def close(self) -> None:
        """Wait until all that was sent is written, and close the socket. Reading ends, on whatever thread."""
        self.drain()
        with contextlib.suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits in a read keeps a closed socket open
        self._socket.close()

    @property
    def is_left(self) -> bool:
        """Whether the other end is closed, and all that it sent is read."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def messages(self) -> Iterator[ToEngine]:
        """The server's messages, until it closes its end or is killed, even within a frame.

        An unreadable message is sent back as `Unreadable`: it ends one request, not the engine.
        """
        while (header := self._read(FRAME_HEADER)) and (body := self._read(frame_length(header))):
            if isinstance(message := read_by_engine(body), Unreadable):
                self.send(message)
            else:
                yield message

    def _read(self, length: int) -> bytes:
        """Exactly `length` bytes, or none if the other end is gone."""
        parts = []
        while length and (part := self._received(min(length, 1 << 20))):
            parts.append(part)
            length -= len(part)
        return b"".join(parts) if not length else b""

    def _received(self, most: int) -> bytes:
        self._readable.poll()  # a thread that waits in recv is woken whenever the other end reads
        try:
            return self._socket.recv(most)
        except OSError:  # the server ended with unread messages, or this end is closed
            return b""

    def _sent(self, frame: bytes) -> int:
        """How many bytes of the frame the system takes at once; 0 after an error, which the writer then meets."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except OSError:
            return 0

    def _write(self) -> None:
        while (frame := self._outbox.get()) is not None:
            try:
                self._socket.sendall(frame)
            except OSError:
                return self._on_lost()
            with self._lock:
                self._unsent -= 1
