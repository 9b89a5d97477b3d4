"""The server's end of a channel to an engine: frames out, frames in. Knows not where the engine runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from logging import Logger

import msgspec

from nbgen.frames import FRAME_HEADER, FromEngine, ToEngine, encode_frame, frame_length, from_engine_decoder

#: Each way of the channel: a tensor of many megabytes then needs few turns between the two ends.
BUFFER_BYTES = 2**22


class EngineChannel:
    """A connected engine. How it is forced to end, and waited for, is said by where it runs."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, log: Logger) -> None:
        self._log = log

    @property
    def pid(self) -> int | None:
        """Of the process that the server may end with it."""
        raise NotImplementedError

    def send(self, message: ToEngine) -> None:
        """Queue a message. An engine that is gone is noticed where messages are read."""
        self._writer.write(encode_frame(message))

    async def drain(self) -> None:
        """Wait while the engine reads more slowly than is sent."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def messages(self) -> AsyncIterator[FromEngine]:
        """What the engine says, until the channel ends or carries something that is no message."""
        while True:
            try:
                header = await self._reader.readexactly(FRAME_HEADER)
                body = await self._reader.readexactly(frame_length(header))
                message = from_engine_decoder.decode(body)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except (ValueError, msgspec.DecodeError) as error:
                self._log.error("The engine sent something that is no message: %s", error)
                return
            yield message

    def close(self) -> None:
        """End the channel, which asks the engine to end."""
        self._writer.close()

    def kill(self) -> None:
        """End it at once."""
        raise NotImplementedError

    async def end(self, patience: float) -> str:
        """Wait for the end, with force after `patience` seconds; the words for how it ended."""
        raise NotImplementedError

    def last_words(self) -> str:
        """What it said last, as a client may see it."""
        return ""
