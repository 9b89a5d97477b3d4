"""The server's end of a channel to an engine: frames out, frames in. Does not know where the engine runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from logging import Logger

from nbgen.frames import ToEngine, encode_frame
from nbgen.server.frame_reader import FrameProtocol, FrameReader, Receive


class EngineChannel:
    """A connected engine. Subclasses know where it runs, and so how to kill it and to wait for its end."""

    _reader: FrameReader
    _writer: asyncio.StreamWriter

    def __init__(self, log: Logger) -> None:
        self._log = log

    @property
    def pid(self) -> int | None:
        """The engine's process id, if the server may kill that process; else None."""
        raise NotImplementedError

    async def _open(self, path: str | None = None, sock: socket.socket | None = None) -> None:
        """Take the server's end of a Unix socket. Raises OSError where nobody listens."""
        loop, reader = asyncio.get_running_loop(), FrameReader(self._log)
        protocol = FrameProtocol(reader)
        transport, _ = await loop.create_unix_connection(lambda: protocol, path, sock=sock)
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def send(self, message: ToEngine) -> None:
        """Queue a message. An engine that is gone is noticed where messages are read."""
        self._writer.write(encode_frame(message))

    async def drain(self) -> None:
        """Wait until the engine has read enough of what was sent."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def listen(self, receive: Receive) -> None:
        """Call `receive` with the engine's messages, until the channel closes or carries something that is no message.

        Raises what `receive` raises.
        """
        await self._reader.listen(receive)

    def close(self) -> None:
        """End the channel, which asks the engine to end."""
        self._writer.close()

    def kill(self) -> None:
        """End the engine, or the connection to it, at once."""
        raise NotImplementedError

    async def end(self, patience: float) -> str:
        """Wait for the engine's end, and force it after `patience` seconds; returns words for how it ended."""
        raise NotImplementedError

    def last_words(self) -> str:
        """The engine's last log lines, in a form fit for clients."""
        return ""
